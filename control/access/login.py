"""Logs users in and out, and finds out which user sent a request."""

from __future__ import annotations

import logging
import math
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from anyio import CapacityLimiter, to_thread

from control.access.sessions import RateLimit, Sessions
from control.access.users import User, hash_token
from control.problem import Problem
from control.roles import Role

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.responses import Response

    from joiner.runtime.clock import Clock

_BEARER: Final = "bearer "
_LOGINS_MAX: Final = 2

_log = logging.getLogger(__name__)


class Directory(Protocol):
    """Looks up users."""

    def with_password(self, name: str, password: str) -> User | None:
        """Return the user with this name and password, or None."""
        ...

    def with_token(self, token: str) -> User | None:
        """Return the user with this token, or None."""
        ...

    def current(self, user: User) -> User | None:
        """Return the user with their current role, or None if they no longer exist."""
        ...


class TokenOfRun:
    """The only user of a service without a users file: an admin whose token is valid while the service runs."""

    def __init__(self) -> None:
        self.token: Final = secrets.token_urlsafe(32)
        self._user: Final = User("admin", Role.ADMIN)

    def with_password(self, name: str, password: str) -> User | None:
        """Return the admin if the password is the token."""
        return self.with_token(password) if name == self._user.name else None

    def with_token(self, token: str) -> User | None:
        """See `Directory`."""
        return self._user if secrets.compare_digest(hash_token(token), hash_token(self.token)) else None

    def current(self, user: User) -> User | None:
        """See `Directory`."""
        return user


class Login:
    """Decides who may use the service. Thread-safe."""

    def __init__(self, directory: Directory, life_s: float, cookie: str, clock: Clock, *, is_over_tls: bool) -> None:
        """``life_s``: how long a session lasts. ``cookie``: its name, which no other service on this host may use."""
        # The prefix makes browsers refuse the cookie if it was set for other hosts, or without TLS.
        self.cookie: Final = f"__Host-{cookie}" if is_over_tls else cookie
        self.is_over_tls = is_over_tls
        self._directory = directory
        self._sessions = Sessions(life_s, clock)
        self._requests = RateLimit(burst=200, per_s=50, clock=clock)
        self._attempts = RateLimit(burst=5, per_s=0.1, clock=clock)
        # Checking a password takes 64 MB.
        self._limiter = CapacityLimiter(_LOGINS_MAX)

    def check_rate(self, caller: str) -> None:
        """Raise `Problem` if a caller sends too many requests."""
        _refuse_for(self._requests.wait_s(caller), "too many requests")

    def log_in(self, name: str, password: str, caller: str) -> tuple[User, str]:
        """Start a session and return its user and id. Takes about a tenth of a second. Raises `Problem`."""
        # Attempts are limited by address. If they were limited by name, anybody could lock out a user.
        _refuse_for(self._attempts.wait_s(caller), "too many attempts to log in")
        user = self._directory.with_password(name, password)
        # The log must not contain an unknown name: it may be a password typed into the wrong field.
        if user is None:
            _log.warning("a login from %s was refused", caller)
            raise Problem(HTTPStatus.UNAUTHORIZED, "the name or the password is wrong")
        _log.info("%s logged in from %s", user.name, caller)
        return user, self._sessions.begin(user)

    async def log_in_aside(self, name: str, password: str, caller: str) -> tuple[User, str]:
        """Call `log_in` in a thread. Logins waiting for their turn do not use up the threads of other requests."""
        return await to_thread.run_sync(self.log_in, name, password, caller, limiter=self._limiter)

    def set_cookie(self, response: Response, identity: str) -> None:
        """Set the session cookie on a response."""
        response.set_cookie(
            self.cookie,
            identity,
            max_age=int(self._sessions.life_s),
            secure=self.is_over_tls,
            httponly=True,
            samesite="strict",
        )

    def log_out(self, connection: HTTPConnection, response: Response) -> None:
        """End the request's session, if it has one."""
        self.end(connection.cookies.get(self.cookie, ""))
        response.delete_cookie(self.cookie, secure=self.is_over_tls, httponly=True, samesite="strict")

    def user_of(self, connection: HTTPConnection) -> tuple[User | None, bool]:
        """Return the user who sent a request, and whether the request relies on a session cookie."""
        given = connection.headers.get("authorization", "")
        if given[: len(_BEARER)].lower() == _BEARER:
            return self._directory.with_token(given[len(_BEARER) :].strip()), False
        identity = connection.cookies.get(self.cookie, "")
        return self.user_with(identity), bool(identity)

    def user_with(self, identity: str) -> User | None:
        """Return a session's user with their current role, or None if it has ended or the user was removed."""
        user = self._sessions.user(identity)
        return None if user is None else self._directory.current(user)

    def end(self, identity: str) -> None:
        """End a session."""
        self._sessions.end(identity)


def _refuse_for(wait_s: float, why: str) -> None:
    if wait_s:
        seconds = math.ceil(wait_s)
        raise Problem(HTTPStatus.TOO_MANY_REQUESTS, f"{why}: try again in {seconds} s", Retry_After=str(seconds))
