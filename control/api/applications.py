"""``/api/v1/applications``: what is known about each application."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from control.api.schema import answer, json_response
from control.facts.overview import Overview
from control.facts.reading import Supervisor
from control.facts.timeline import EVENTS_MAX, Event
from control.facts.topology import Topology, topology_of
from control.problem import Problem
from joiner.runtime.membership.status.summary import Status

if TYPE_CHECKING:
    from control.facts.watcher import Watcher

_Of = TypeVar("_Of")

Name = Annotated[str, Path(max_length=200, description="The name of an application.")]


class ApplicationStatus(msgspec.Struct):
    """What `joiner status` shows for an application, and how current it is.

    ``status``: None if the application has never run. ``rates``: the records per second that each unit consumes.
    ``supervisors``: the processes that supervise worker processes. ``read_ms``, ``missing``, ``trouble``: see `Facts`.
    """

    name: str
    status: Status | None
    rates: list[float]
    read_ms: int | None
    missing: list[str]
    trouble: str
    supervisors: list[Supervisor]


def application_routes(watchers: Mapping[str, Watcher]) -> APIRouter:
    """Return the routes. ``watchers``: by application name."""
    routes = APIRouter(prefix="/applications", tags=["applications"])

    @routes.get("", responses=answer("The applications.", list[Overview]), summary="List the applications")
    async def applications() -> Response:
        return json_response([Overview.of(watcher) for watcher in watchers.values()])

    @routes.get(
        "/{name}",
        responses=answer("Its status.", ApplicationStatus),
        summary="Show the units, processes, assignments and joins of an application",
    )
    async def application(name: Name) -> Response:
        facts = of_application(watchers, name).facts
        return json_response(
            ApplicationStatus(
                name,
                facts.status,
                facts.rates,
                facts.read_ms,
                facts.missing,
                facts.trouble,
                facts.supervisors,
            )
        )

    @routes.get(
        "/{name}/topology",
        responses=answer("The nodes and the edges between them.", Topology),
        summary="Show what flows from where to where, at what rate, and what is waiting",
    )
    async def topology(name: Name) -> Response:
        watcher = of_application(watchers, name)
        return json_response(topology_of(watcher.settings, watcher.endpoints, watcher.facts))

    @routes.get(
        "/{name}/events",
        responses=answer("The events, oldest first.", list[Event]),
        summary="List what has happened: instances that joined, left or failed, moves, and changes of owner",
    )
    async def events(
        name: Name,
        after: Annotated[int, Query(ge=0, le=2**53, description="Only events with a higher number.")] = 0,
        limit: Annotated[int, Query(ge=1, le=EVENTS_MAX, description="At most this many, the newest.")] = EVENTS_MAX,
    ) -> Response:
        found = [event for event in of_application(watchers, name).events if event.number > after]
        return json_response(found[-limit:])

    return routes


def of_application(known: Mapping[str, _Of], name: str) -> _Of:
    """Return the value for the application with this name. Raises `Problem` if there is none."""
    if name not in known:
        raise Problem(HTTPStatus.NOT_FOUND, f"no application with this name; known: {', '.join(known)}")
    return known[name]
