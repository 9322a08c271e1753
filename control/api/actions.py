"""``/api/v1/applications/<name>/actions``: orders that change something, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response

from control.access.permission import user_with_role
from control.actions.desk import Desk, KeyReused, NotAccepted
from control.actions.history import ACTIONS_MAX, Action, Refusal, without_contents
from control.actions.orders import Order, decode_order
from control.api.applications import Name, of_application
from control.api.schema import answer, body_of, json_response
from control.problem import Problem
from control.roles import Role
from joiner.runtime.membership.ordering import OrderRefused

if TYPE_CHECKING:
    from control.access.users import User

_ACCEPTED_AT_ONCE: Final = 4
_LISTED: Final = 50

Id = Annotated[str, Path(max_length=64, description="The id of an action.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description=(
            "Chosen by the caller, a new one for each order, and required unless dry_run is given. If the same user "
            "sends the same order with the same key again, nothing more happens, and the response is the action that "
            "the first request caused."
        ),
    ),
]


class Plan(msgspec.Struct):
    """What an order would do, in sentences."""

    would: list[str]


class Actions(msgspec.Struct):
    """An application's last actions and refused orders, oldest first.

    ``trouble``: why orders cannot be accepted at present, or an empty string.
    """

    actions: list[Action]
    refusals: list[Refusal]
    trouble: str


def action_routes(desks: Mapping[str, Desk]) -> APIRouter:
    """Return the routes. ``desks``: by application name."""
    routes = APIRouter(prefix="/applications/{name}/actions", tags=["actions"])
    # Each application has its own limiter, so that one with a slow Kafka does not keep the others waiting.
    limiters = {name: CapacityLimiter(_ACCEPTED_AT_ONCE) for name in desks}

    @routes.get("", responses=answer("The actions.", Actions), summary="List what was ordered, and what came of it")
    async def actions(
        name: Name, limit: Annotated[int, Query(ge=1, le=ACTIONS_MAX, description="At most this many.")] = _LISTED
    ) -> Response:
        desk = of_application(desks, name)
        shown = [without_contents(one) for one in desk.actions(limit)]
        return json_response(Actions(shown, desk.refusals[-limit:], desk.trouble))

    @routes.get("/{action}", responses=answer("The action.", Action), summary="Show an action and its progress")
    async def action(name: Name, action: Id) -> Response:
        found = of_application(desks, name).action(action)
        if found is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"no action with this id among the last {ACTIONS_MAX}")
        return json_response(without_contents(found))

    @routes.post(
        "",
        openapi_extra=body_of(Order),
        responses={
            **answer("With dry_run: what the order would do now.", Plan),
            **answer(
                "The order was recorded, now or by an earlier request. The action shows what becomes of it.",
                Action,
                HTTPStatus.ACCEPTED.value,
                may_wait="The order cannot be recorded now, or may have been: the problem says what to do.",
            ),
        },
        summary="Order something",
    )
    async def order(
        name: Name,
        request: Request,
        key: Key = None,
        dry_run: Annotated[bool, Query(description="Only check the order, and say what it would do.")] = False,  # noqa: FBT002 - a parameter of the query
    ) -> Response:
        # The role comes first, so that users without it learn nothing about the application.
        user = user_with_role(request, Role.OPERATOR)
        desk = of_application(desks, name)
        given = await _order_in(request)
        user_with_role(request, given.role)
        if dry_run:
            return json_response(Plan(await to_thread.run_sync(_checked, desk, given, user, limiter=limiters[name])))
        if key is None:
            raise Problem(HTTPStatus.BAD_REQUEST, "send an Idempotency-Key header with a text that you use only once")
        accepted = await to_thread.run_sync(_accept, desk, given, key, user, limiter=limiters[name])
        return json_response(
            accepted, HTTPStatus.ACCEPTED, Location=f"/api/v1/applications/{name}/actions/{accepted.id}"
        )

    return routes


async def _order_in(request: Request) -> Order:
    # Other sites' pages can send forms and plain text without a CORS preflight, but not JSON.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the order as application/json")
    try:
        return decode_order(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"not a valid order: {error}") from error


def _checked(desk: Desk, order: Order, user: User) -> list[str]:
    try:
        return desk.preview(order, user.name)
    except OrderRefused as refused:
        raise Problem(HTTPStatus.CONFLICT, str(refused)) from refused


def _accept(desk: Desk, order: Order, key: str, user: User) -> Action:
    try:
        return desk.accept(order, key, user.name).action
    except OrderRefused as refused:
        raise Problem(HTTPStatus.CONFLICT, str(refused)) from refused
    except KeyReused as error:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
    except NotAccepted as error:
        advice = "; repeat the request with the same Idempotency-Key" if error.may_count else ""
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}{advice}", Retry_After="5") from error
