"""The checks that every request passes before anything else sees it, whether it is HTTP or opens a WebSocket.

They refuse names of the service that are not its own (DNS rebinding), requests from pages of other sites (cross-site
request forgery), bodies that are too large, callers that ask too often, and callers who have not logged in.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection

from control.problem import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from control.access.login import Login

BODY_BYTES_MAX: Final = 64 * 1024

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PUBLIC: Final = frozenset({("GET", "/health"), ("POST", "/api/v1/session")})
"""The requests that need no login."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """ASGI middleware with these checks. It puts the user into ``request.state.user``."""

    def __init__(self, app: ASGIApp, login: Login, hosts: frozenset[str]) -> None:
        """``hosts``: the names of the service, without ports, besides those of the loopback interface."""
        self.app = app
        self._login = login
        self._hosts = _LOOPBACK | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on, or refuse it."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        try:
            await self._check(scope)
        except Problem as problem:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": problem.status.phrase})
            else:
                await problem.response()(scope, receive, _with_headers(send, self._login.is_over_tls))
            return
        await self.app(scope, receive, _with_headers(send, self._login.is_over_tls))

    async def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        method = scope.get("method", "GET")
        host = headers.get("host", "")
        if _name_of(host) not in self._hosts:
            raise Problem(HTTPStatus.MISDIRECTED_REQUEST, "unknown host name: add it to control.hosts")
        changes = method not in _READS or scope["type"] == "websocket"
        origin = headers.get("origin")
        if changes and origin is not None and origin.lower().partition("://")[2] != host.lower():
            raise Problem(HTTPStatus.FORBIDDEN, "the request comes from a page of another site")
        length = headers.get("content-length", "0")
        # Python refuses to convert thousands of digits.
        if not re.fullmatch(r"[0-9]{1,10}", length) or int(length) > BODY_BYTES_MAX:
            raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have {BODY_BYTES_MAX:,} bytes at most")
        caller = scope["client"][0] if scope.get("client") else "unknown"
        connection = HTTPConnection(scope)
        self._login.check_rate(caller)
        user, is_by_cookie = self._login.user_of(connection)
        if user is None and (method, scope["path"]) not in _PUBLIC:
            raise Problem(HTTPStatus.UNAUTHORIZED, "log in, or send a token", WWW_Authenticate="Bearer")
        # A browser sends cookies by itself, so a change must prove that it comes from a page of this service.
        if changes and is_by_cookie and origin is None and headers.get("sec-fetch-site") != "same-origin":
            raise Problem(
                HTTPStatus.FORBIDDEN, "the request does not say which site's page it comes from; send a token"
            )
        scope.setdefault("state", {})["user"] = user


def _name_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _with_headers(send: Send, is_over_tls: bool) -> Send:  # noqa: FBT001 - passed on
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if is_over_tls:
                headers.setdefault("Strict-Transport-Security", "max-age=31536000")
        await send(message)

    return sending
