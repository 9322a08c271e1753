"""Puts the service together: its routes, the checks before them, and the errors after them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from control.access.guard import BODY_BYTES_MAX, Guard
from control.api.applications import ApplicationStatus, application_routes
from control.api.schema import describe_with
from control.api.session import Identity, session_routes
from control.facts.overview import Overview
from control.facts.timeline import Event
from control.metrics import Metrics
from control.problem import Problem

if TYPE_CHECKING:
    from control.access.login import Login
    from control.facts.watcher import Watcher

_log = logging.getLogger(__name__)


def make_app(watchers: Mapping[str, Watcher], login: Login, hosts: frozenset[str]) -> FastAPI:
    """Return the service. ``watchers``: by application. ``hosts``: see `Guard`."""
    # The pages that FastAPI has for its description load scripts from other sites.
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        redirect_slashes=False,
        max_body_size=BODY_BYTES_MAX,
    )
    api = APIRouter(prefix="/api/v1")
    api.include_router(session_routes(login))
    api.include_router(application_routes(watchers))
    app.include_router(api)
    describe_with(app, [Overview, ApplicationStatus, Event, Identity])
    metrics = Metrics(watchers)

    @app.get("/health", include_in_schema=False)
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
    async def refuse_route(_request: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        problem = Problem(status, f"{error.detail}; the interface is described in /api/v1/openapi.json")
        problem.headers |= dict(error.headers or {})
        return problem.response()

    @app.exception_handler(RequestValidationError)
    async def refuse_input(_request: Request, error: RequestValidationError) -> Response:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(faults)).response()

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "an error in this program; see its log").response()

    app.add_middleware(Guard, login=login, hosts=hosts)
    return app
