"""``/api/v1/applications/<name>/keys``, ``.../joins/<join>/records`` and ``.../replicas``: what is read on request."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from broker.wire.records import NAME_LENGTH_MAX
from control.access.permission import user_with_role
from control.api.applications import Name, of_application
from control.api.schema import answer, json_response
from control.facts.lookup.keys import KEYS_MAX, Keys, Selection
from control.facts.lookup.one_at_a_time import Unavailable
from control.facts.lookup.records import LIMIT_MAX, ThingRecords
from control.facts.overview import Replicas, replicas_of
from control.problem import Problem
from control.roles import Role

if TYPE_CHECKING:
    from control.facts.watcher import Watcher
    from joiner.operators import JoinSettings

_Result = TypeVar("_Result")

_Join = Annotated[str, Path(max_length=200, description="The name of a join.")]
_Thing = Annotated[str, Query(min_length=1, max_length=NAME_LENGTH_MAX, description="The name of a thing.")]


def lookup_routes(watchers: Mapping[str, Watcher]) -> APIRouter:
    """Return the routes. ``watchers``: by application name."""
    routes = APIRouter(prefix="/applications", tags=["applications"])

    @routes.get(
        "/{name}/keys",
        responses=_answer("The keys, those with the most held records first.", Keys),
        summary="List the things for which joins and aligns hold the most records, and the streams they wait for",
    )
    async def keys(
        name: Name,
        unit: Annotated[int | None, Query(ge=0, description="Only this unit.")] = None,
        operator: Annotated[str, Query(max_length=200, description="Only this join or align.")] = "",
        thing: Annotated[str, Query(max_length=NAME_LENGTH_MAX, description="Only names that contain this text.")] = "",
        limit: Annotated[int, Query(ge=1, le=KEYS_MAX, description="At most this many.")] = 50,
    ) -> Response:
        watcher = of_application(watchers, name)
        units = watcher.settings.topics.partitions
        if unit is not None and unit >= units:
            raise Problem(HTTPStatus.NOT_FOUND, f"no unit with this number; the units are 0 to {units - 1}")
        names = [one.name for one in watcher.settings.operators]
        if operator and operator not in names:
            raise Problem(HTTPStatus.NOT_FOUND, f"no join or align with this name; known: {', '.join(names)}")
        return json_response(await _read(watcher.lookup.keys(Selection(unit, operator, thing), limit)))

    @routes.get(
        "/{name}/joins/{join}/records",
        responses=_answer("The records, and the pairs between them.", ThingRecords),
        summary="Show the last records of a thing in both streams of a join, and their pairs (role: operator)",
    )
    async def records(
        request: Request,
        name: Name,
        join: _Join,
        thing: _Thing,
        limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="At most this many per stream.")] = 100,
    ) -> Response:
        user_with_role(request, Role.OPERATOR)
        watcher = of_application(watchers, name)
        found = _join_of(watcher.settings.join, join)
        return json_response(await _read(watcher.lookup.records(found, thing, limit)))

    @routes.get(
        "/{name}/replicas",
        responses=_answer("The replicas. If there are no others, none, and nothing is read.", Replicas),
        summary="Show the replicas of an application, and which of them was first to write the last results",
    )
    async def replicas(name: Name) -> Response:
        watcher = of_application(watchers, name)
        is_alone = watcher.settings.application.replicas == 1
        return json_response(replicas_of(watcher, None if is_alone else await _read(watcher.lookup.replicas())))

    return routes


def _join_of(joins: list[JoinSettings], name: str) -> JoinSettings:
    for join in joins:
        if join.name == name:
            return join
    names = ", ".join(join.name for join in joins)
    raise Problem(HTTPStatus.NOT_FOUND, f"no join with this name; known: {names or 'none'}")


async def _read(reading: Awaitable[_Result]) -> _Result:
    try:
        return await reading
    except Unavailable as why:
        detail = f"this cannot be read now: {why}; try again in {why.retry_s} s"
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, Retry_After=str(why.retry_s)) from why


def _answer(what: str, kind: Any) -> dict[int | str, dict[str, Any]]:
    return answer(what, kind, may_wait="It cannot be read now.")
