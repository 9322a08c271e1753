"""The login form: a plain page without scripts."""

from __future__ import annotations

import html
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from control.access.guard import network_of
from control.problem import Problem

if TYPE_CHECKING:
    from control.access.login import Login

HOME: Final = "/ui/"
PATH: Final = "/login"

_FIELDS_MAX: Final = 10
_POLICY: Final = "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

_STYLE: Final = """\
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
main { max-width: 22rem; margin: 15vh auto 0; padding: 0 1rem; }
label, input, button { display: block; width: 100%; box-sizing: border-box; font: inherit; }
input, button { padding: .6rem; margin: .3rem 0 1rem; border: 1px solid GrayText; border-radius: .3rem; }
button { background: #1d4ed8; color: #fff; border: 0; }
.refused { border-left: .3rem solid #dc2626; padding-left: .6rem; }
"""

_FORM: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in - LocalStreamBuffer</title>
<link rel="stylesheet" href="/login.css">
</head>
<body>
<main>
<h1>LocalStreamBuffer</h1>
{refused}
<form method="post" action="/login">
<label for="name">Name</label>
<input id="name" name="name" autocomplete="username" required maxlength="64" autofocus value="{name}">
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required maxlength="1000">
<button>Log in</button>
</form>
</main>
</body>
</html>
"""


def form_routes(login: Login) -> APIRouter:
    """Return the form's routes. Users who log in are redirected to the page."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def home() -> Response:
        return RedirectResponse(HOME, HTTPStatus.SEE_OTHER)

    @routes.get("/ui")
    async def page() -> Response:
        return RedirectResponse(HOME, HTTPStatus.SEE_OTHER)

    @routes.get("/login.css")
    async def style() -> Response:
        return Response(_STYLE, media_type="text/css")

    @routes.get(PATH)
    async def show() -> Response:
        return _form()

    @routes.post(PATH)
    async def log_in(request: Request) -> Response:
        caller = request.client.host if request.client else "unknown"
        try:
            given = parse_qs((await request.body()).decode(errors="replace"), max_num_fields=_FIELDS_MAX)
        except ValueError:
            return _form(Problem(HTTPStatus.BAD_REQUEST, f"the form has more than {_FIELDS_MAX} fields"))
        name, password = given.get("name", [""])[0], given.get("password", [""])[0]
        try:
            _, identity = await login.log_in_aside(name[:64], password, network_of(caller))
        except Problem as problem:
            return _form(problem, name)
        response = RedirectResponse(HOME, HTTPStatus.SEE_OTHER)
        login.set_cookie(response, identity)
        return response

    return routes


def _form(problem: Problem | None = None, name: str = "") -> Response:
    refused = "" if problem is None else f'<p class="refused" role="alert">{html.escape(problem.detail)}</p>'
    content = _FORM.format(refused=refused, name=html.escape(name[:64]))
    status = HTTPStatus.OK if problem is None else problem.status
    headers = {"Content-Security-Policy": _POLICY, **({} if problem is None else problem.headers)}
    return HTMLResponse(content, status.value, headers)
