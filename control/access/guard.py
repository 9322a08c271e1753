"""The checks that every request, HTTP or WebSocket, must pass before anything else sees it.

They refuse requests for unknown host names (DNS rebinding) or from other sites' pages (cross-site request forgery),
oversized bodies, callers that send too many requests, and callers who have not logged in.
"""

from __future__ import annotations

import ipaddress
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse

from control.problem import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from control.access.login import Login

BODY_BYTES_MAX: Final = 512 * 1024
"""Enough for a record of the maximum size as a JSON string, where a character takes up to six bytes."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HEALTH: Final = "/health"
_PUBLIC: Final = frozenset({("POST", "/api/v1/session"), ("GET", "/login"), ("POST", "/login"), ("GET", "/login.css")})
"""The requests that need no login, apart from health checks."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send no origin with a form
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_PAGE: Final = "/ui/"
_ASSETS: Final = "/ui/_nicegui/"
_PAGE_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'none'"
)
"""NiceGUI evaluates expressions in the browser, so its pages need ``unsafe-eval``."""


class Guard:
    """ASGI middleware that checks every request. It puts the user into ``request.state.user``."""

    def __init__(self, app: ASGIApp, login: Login, hosts: frozenset[str]) -> None:
        """``hosts``: the service's host names, without ports, in addition to those of the loopback interface."""
        self.app = app
        self._login = login
        self._hosts = _LOOPBACK | {f"[{host}]" if ":" in host else host for host in map(str.lower, hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on, or refuse it."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        try:
            if not _is_probe(scope):
                self._check(scope)
        except Problem as problem:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": problem.status.phrase})
            elif problem.status == HTTPStatus.UNAUTHORIZED and _is_for_people(scope):
                redirect = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
                await redirect(scope, receive, self._with_headers(scope, send))
            else:
                await problem.response()(scope, receive, self._with_headers(scope, send))
            return
        await self.app(scope, receive, self._with_headers(scope, send))

    def _check(self, scope: Scope) -> None:
        """Raise `Problem` if the request must be refused."""
        headers = Headers(scope=scope)
        self._check_place(scope, headers)
        _check_body(headers)
        user, is_by_cookie = self._login.user_of(HTTPConnection(scope))
        # A page loads many assets, so they are not rate-limited for logged-in users.
        if user is None or not scope["path"].startswith(_ASSETS):
            self._login.check_rate(network_of(scope["client"][0] if scope.get("client") else "unknown"))
        is_public = scope["type"] == "http" and (scope["method"], scope["path"]) in _PUBLIC
        if user is None and not is_public:
            raise Problem(HTTPStatus.UNAUTHORIZED, "log in, or send a token", WWW_Authenticate="Bearer")
        # A browser sends cookies on its own, so a change must prove that it comes from a page of this service.
        says_where = "origin" in headers or headers.get("sec-fetch-site") == "same-origin"
        if _changes(scope) and is_by_cookie and not says_where:
            raise Problem(HTTPStatus.FORBIDDEN, "the request does not say which site it comes from; send a token")
        scope.setdefault("state", {})["user"] = user

    def _check_place(self, scope: Scope, headers: Headers) -> None:
        """Check the host name and the scheme of the request, and the page it comes from."""
        host = headers.get("host", "").lower()
        name = _HOST.fullmatch(host)
        if name is None or name[1] not in self._hosts:
            raise Problem(HTTPStatus.MISDIRECTED_REQUEST, "unknown host name: add it to control.hosts")
        is_over_tls = scope["scheme"] in {"https", "wss"}
        if self._login.is_over_tls and not is_over_tls:
            raise Problem(
                HTTPStatus.FORBIDDEN, "TLS is required; if a proxy terminates it, add its address to control.proxies"
            )
        origin = headers.get("origin", "").lower()
        if origin and origin != f"{'https' if is_over_tls else 'http'}://{host}":
            # A proxy that does not pass on the host name has the same effect.
            raise Problem(HTTPStatus.FORBIDDEN, f"the request comes from a page of a site other than {host}")

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        more = dict(_HEADERS)
        if scope["path"].startswith(_PAGE):
            more["Content-Security-Policy"] = _PAGE_POLICY

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in more.items():
                    headers.setdefault(name, value)
            await send(message)

        return sending


def network_of(address: str) -> str:
    """Return the address that identifies a caller: for IPv6, the network, because a caller usually controls it all."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))  # noqa: PLR2004 - IPv4


def _changes(scope: Scope) -> bool:
    return scope["type"] == "websocket" or scope["method"] not in _READS


def _check_body(headers: Headers) -> None:
    if "transfer-encoding" in headers:
        raise Problem(HTTPStatus.LENGTH_REQUIRED, "the request does not say how long its body is")
    length = headers.get("content-length", "0")
    # Python refuses to convert thousands of digits.
    if not re.fullmatch(r"[0-9]{1,10}", length) or int(length) > BODY_BYTES_MAX:
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have {BODY_BYTES_MAX:,} bytes at most")


def _is_probe(scope: Scope) -> bool:
    """Return whether a request is a health check, which is accepted under any host name and at any rate."""
    return scope["type"] == "http" and scope["path"] == _HEALTH and scope["method"] in {"GET", "HEAD"}


def _is_for_people(scope: Scope) -> bool:
    """Return whether a browser is requesting a page."""
    accepts = Headers(scope=scope).get("accept", "")
    return scope["method"] == "GET" and "text/html" in accepts and not scope["path"].startswith("/api/")
