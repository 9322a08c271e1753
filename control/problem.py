"""Errors of the HTTP interface, as problem details (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

MEDIA_TYPE: Final = "application/problem+json"


class ProblemDetails(msgspec.Struct):
    """Why a request was refused (RFC 9457)."""

    title: str
    status: int
    detail: str


class Problem(Exception):
    """A refused request. ``detail``: the cause and what to do."""

    def __init__(self, status: HTTPStatus, detail: str, **headers: str) -> None:
        """``headers``: additional headers of the response, with ``_`` in place of ``-``."""
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> Response:
        """Return the response."""
        body = ProblemDetails(self.status.phrase, self.status.value, self.detail)
        return Response(msgspec.json.encode(body), self.status.value, self.headers, MEDIA_TYPE)
