"""``/api/v1/applications/<name>/dead-letters``: the last dead letters, and a single one with its contents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from control.access.permission import user_with_role
from control.actions.dead_letter_contents import DeadLetterContents, contents_of
from control.api.applications import Name, of_application
from control.api.schema import answer, json_response
from control.facts.dead_letters import PAGE_MAX, DeadLetterPage
from control.roles import Role

if TYPE_CHECKING:
    from control.facts.watcher import Watcher

_LIMIT: Final = 50
_PARTITION_MAX: Final = 2**31 - 1
_OFFSET_MAX: Final = 2**63 - 1


def letter_routes(watchers: Mapping[str, Watcher]) -> APIRouter:
    """Return the routes. ``watchers``: by application name."""
    routes = APIRouter(prefix="/applications/{name}/dead-letters", tags=["dead letters"])

    @routes.get(
        "",
        responses=answer("The dead letters, newest first.", DeadLetterPage),
        summary="List the last dead letters, without their contents",
    )
    async def letters(
        name: Name,
        before: Annotated[int | None, Query(ge=1, le=2**53, description="Only those with a lower number.")] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX, description="At most this many.")] = _LIMIT,
        source: Annotated[str, Query(max_length=300, description="Only those from this source.")] = "",
        reason: Annotated[
            str, Query(max_length=300, description="Only those whose reason, or its kind, contains this text.")
        ] = "",
    ) -> Response:
        return json_response(of_application(watchers, name).letters.page(before, limit, source, reason))

    @routes.get(
        "/{partition}/{offset}",
        responses=answer("The dead letter.", DeadLetterContents),
        summary="Show a dead letter with its contents. Needs the role operator",
    )
    async def letter(
        name: Name,
        partition: Annotated[int, Path(ge=0, le=_PARTITION_MAX, description="Its partition.")],
        offset: Annotated[int, Path(ge=0, le=_OFFSET_MAX, description="Its offset.")],
        request: Request,
    ) -> Response:
        user_with_role(request, Role.OPERATOR)
        settings = of_application(watchers, name).settings
        return json_response(await contents_of(settings, partition, offset))

    return routes
