"""Checks that a user has the role that a request needs."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from control.access.users import User
from control.problem import Problem
from control.roles import Role

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection


def user_with_role(connection: HTTPConnection, role: Role) -> User:
    """Return the user of a request that has passed the `Guard`. Raises `Problem` if the user needs a higher role."""
    user: User = connection.state.user
    if refusal := refusal_of(user, role):
        raise Problem(HTTPStatus.FORBIDDEN, refusal)
    return user


def refusal_of(user: User, role: Role) -> str:
    """Return why a user may not do something that needs ``role``, or an empty string."""
    if user.role >= role:
        return ""
    return f"this needs the role {role.name.lower()}, and {user.name} is {user.role.name.lower()}"
