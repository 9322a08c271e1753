"""Assembles the service from its routes and error handlers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match

from control.access.form import form_routes
from control.actions.dead_letter_contents import DeadLetterContents
from control.actions.history import Action
from control.actions.orders import Order
from control.api.actions import Actions, Plan, action_routes
from control.api.applications import ApplicationStatus, application_routes
from control.api.dead_letters import letter_routes
from control.api.lookup import lookup_routes
from control.api.metrics import Metrics
from control.api.schema import describe_with
from control.api.session import Identity, session_routes
from control.facts.dead_letters import DeadLetterPage
from control.facts.lookup.keys import Keys
from control.facts.lookup.records import ThingRecords
from control.facts.overview import Overview, Replicas
from control.facts.timeline import Event
from control.facts.topology import Topology
from control.problem import Problem

if TYPE_CHECKING:
    from control.access.login import Login
    from control.actions.desk import Desk
    from control.facts.watcher import Watcher

_log = logging.getLogger(__name__)


def make_app(watchers: Mapping[str, Watcher], desks: Mapping[str, Desk], login: Login) -> FastAPI:
    """Return the service, without the `Guard` that must be in front of it. ``watchers``, ``desks``: by application."""
    # FastAPI's documentation pages load scripts from other sites.
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        redirect_slashes=False,
    )
    api = APIRouter(prefix="/api/v1")
    api.include_router(session_routes(login))
    api.include_router(application_routes(watchers))
    api.include_router(action_routes(desks))
    api.include_router(lookup_routes(watchers))
    api.include_router(letter_routes(watchers))
    app.include_router(api)
    app.include_router(form_routes(login))
    kinds: list[Any] = [Overview, ApplicationStatus, Topology, Event, Identity, Keys, ThingRecords, Replicas]
    kinds += [DeadLetterPage, DeadLetterContents, Order, Plan, Action, Actions]
    describe_with(app, kinds, login.cookie)
    metrics = Metrics(watchers)

    @app.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/metrics", include_in_schema=False)
    async def show_metrics() -> Response:
        body, media_type = metrics.exposition()
        return Response(body, media_type=media_type)

    @app.exception_handler(Problem)
    async def refuse(_request: Request, problem: Problem) -> Response:
        return problem.response()

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        problem = Problem(status, f"{error.detail}; the interface is described in /api/v1/openapi.json")
        problem.headers |= dict(error.headers or {})
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            # The error names only the methods of the first route with this path. RFC 9110, section 15.5.6, wants all.
            problem.headers["Allow"] = ", ".join(_methods(app, request))
        return problem.response()

    @app.exception_handler(RequestValidationError)
    async def refuse_input(_request: Request, error: RequestValidationError) -> Response:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(faults)).response()

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
        return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "an error in this program; see its log").response()

    return app


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Return the methods supported by a request's path."""
    scopes = {
        method: {**request.scope, "method": method} for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
    }
    return [
        method for method, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in app.routes)
    ]
