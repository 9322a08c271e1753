"""``/api/v1/session``: log in, log out, and who is logged in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from control.access.guard import network_of
from control.access.users import PASSWORD_LENGTH_MAX, User
from control.api.schema import answer, json_response

if TYPE_CHECKING:
    from control.access.login import Login


class Credentials(BaseModel):
    """The name and the password of a user."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(max_length=64)]
    password: Annotated[str, Field(max_length=PASSWORD_LENGTH_MAX)]


class Identity(msgspec.Struct):
    """A user and their role: ``viewer``, ``operator`` or ``admin``."""

    name: str
    role: str

    @classmethod
    def of(cls, user: User) -> Identity:
        """Return the identity of a user."""
        return cls(user.name, user.role.name.lower())


def session_routes(login: Login) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/session", tags=["session"])

    @routes.post(
        "",
        openapi_extra={"security": []},
        responses=answer("Logged in; the session's cookie is set.", Identity),
        summary="Log in",
    )
    async def log_in(given: Credentials, request: Request) -> Response:
        caller = request.client.host if request.client else "unknown"
        user, identity = await login.log_in_aside(given.name, given.password, network_of(caller))
        response = json_response(Identity.of(user))
        login.set_cookie(response, identity)
        return response

    @routes.get("", responses=answer("Who is logged in.", Identity), summary="Show who is logged in")
    async def who(request: Request) -> Response:
        return json_response(Identity.of(request.state.user))

    @routes.delete("", responses=answer("Logged out.", Identity), summary="Log out")
    async def log_out(request: Request) -> Response:
        response = json_response(Identity.of(request.state.user))
        login.log_out(request, response)
        return response

    return routes
