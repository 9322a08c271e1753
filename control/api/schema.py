"""The OpenAPI description of responses that are msgspec structs."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from broker.commandline import VERSION
from control.problem import MEDIA_TYPE, ProblemDetails

_TEMPLATE: Final = "#/components/schemas/{name}"


def answer(what: str, kind: Any, status: int = 200, *, may_wait: str = "") -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route that answers with a value of this type or with a problem.

    ``may_wait``: why the route may answer with 503, or empty if it never does.
    """
    found, _ = msgspec.json.schema_components([kind, ProblemDetails], ref_template=_TEMPLATE)
    schema, problem = found
    content = {MEDIA_TYPE: {"schema": problem}}
    return {
        status: {"description": what, "content": {"application/json": {"schema": schema}}},
        "4XX": {"description": "The request was refused.", "content": content},
        **({503: {"description": may_wait, "content": content}} if may_wait else {}),
    }


def body_of(kind: Any) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route whose body is a value of this type."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_TEMPLATE)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def json_response(value: Any, status: HTTPStatus = HTTPStatus.OK, **headers: str) -> Response:
    """Return a response with a value as JSON. ``headers``: their names, with ``_`` in place of ``-``, and values."""
    given = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(msgspec.json.encode(value), status.value, given, media_type="application/json")


def describe_with(app: FastAPI, kinds: Iterable[Any], cookie: str) -> None:
    """Extend the OpenAPI description with these types, which `answer` refers to, and with the ways to log in."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title="LocalStreamBuffer", version=VERSION, routes=app.routes)
            _, components = msgspec.json.schema_components([*kinds, ProblemDetails], ref_template=_TEMPLATE)
            found.setdefault("components", {}).setdefault("schemas", {}).update(components)
            found["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": cookie},
            }
            found["security"] = [{"token": []}, {"session": []}]
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # the documented way to extend the description
