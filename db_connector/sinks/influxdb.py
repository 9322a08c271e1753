"""Writes results to InfluxDB through its client library, each as one point, and interprets the responses.

A 400 or 422 response means rejected points only if it carries an InfluxDB header. A gateway, or an unrelated server on
that port, may also return 400, possibly with a JSON body, even though no point is at fault.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException
from urllib3.exceptions import HTTPError

from db_connector.sinks.points import FORM, point_line
from db_connector.sinks.sink import (
    REASON_LENGTH_MAX,
    MisconfiguredError,
    RefusedError,
    TooLargeError,
    UnavailableError,
    WriteError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.settings import InfluxdbSettings
    from db_connector.settings import ConnectorSettings
    from db_connector.sinks.sink import Place, Result

_NS_IN_MS: Final = 1_000_000
_WRITTEN: Final = 204
"""The only HTTP status that acknowledges a write."""

_REFUSES_POINTS: Final = frozenset({400, 422})
_TOO_LARGE: Final = 413
_TRANSIENT: Final = frozenset({0, 408, 429})
"""Statuses after which a write is retried: no response (such as a failed TLS handshake), timeout, too many requests."""
_SERVER_ERRORS: Final = 500
"""Writes are also retried after any status at or above this one."""
_OWN_HEADERS: Final = ("X-Influxdb-Version", "X-Platform-Error-Code")
"""Headers that only InfluxDB sends. Both 1.8 and 2.x send the first; 2.x adds the second to every error response."""

_NO_POINTS: Final = b"# nothing\n"
"""A line protocol comment: InfluxDB checks the token and the bucket, but writes nothing."""

_SHARED_REASONS: Final = ("field type conflict", "points beyond retention policy")
"""Rejection reasons whose text does not depend on the individual point."""

_DIGITS_MAX: Final = 18

_REMEDIES: Final = {
    401: "check influxdb.token (or token_file) in the settings",
    403: "the user or token may not write there: grant the permission, or check influxdb.token and influxdb.bucket",
    404: "create the database, or check influxdb.url and influxdb.bucket",
}

_ADDRESS: Final = "does influxdb.url point to InfluxDB, with the right scheme (http or https)?"
_NOT_OWN: Final = (
    f"the response has no {_OWN_HEADERS[0]} header: {_ADDRESS} A gateway in between must forward this header"
)


class InfluxSink:
    """InfluxDB 2.x or 1.8, over one persistent connection."""

    name = "InfluxDB"

    def __init__(self, influxdb: InfluxdbSettings, settings: ConnectorSettings, time_unit: str) -> None:
        """Create the client without connecting. ``time_unit``: the unit of the results' times.

        Raises SettingsError if the token file cannot be read.
        """
        self._bucket, self._org, self._url = influxdb.bucket, influxdb.org, influxdb.url
        self._measurement, self._time_unit = settings.measurement, time_unit
        self._client = InfluxDBClient(
            url=influxdb.url,
            token=influxdb.secret(),
            org=influxdb.org,
            timeout=settings.request_timeout // _NS_IN_MS,
            enable_gzip=settings.gzip,
            ssl_ca_cert=str(influxdb.tls_ca_file) if influxdb.tls_ca_file else None,
            # The writer retries, with its own back-off.
            retries=False,
        )
        self._api = self._client.write_api(write_options=SYNCHRONOUS)

    @property
    def place(self) -> str:
        """See `Sink.place`."""
        return f"InfluxDB at {self._url}, bucket {self._bucket}, measurement {self._measurement}"

    @property
    def target(self) -> str:
        """See `Sink.target`.

        It includes the version of the point format, because this release's points do not overwrite points that a
        release with a different format wrote.
        """
        return f"{self._measurement} in {self._org}/{self._bucket}, points of form {FORM}"

    def begin(self, topic_id: str) -> None:
        """See `Sink.begin`. It does not matter, because a result is identified by itself."""

    def encode(self, result: Result, place: Place) -> bytes:  # noqa: ARG002 - as above
        """See `point_line`."""
        return point_line(result, self._measurement, self._time_unit)

    def probe(self) -> None:
        """See `Sink.probe`."""
        self.write([_NO_POINTS])

    def write(self, lines: Sequence[bytes]) -> None:
        """See `Sink.write`."""
        try:
            self._api.write(self._bucket, self._org, b"\n".join(lines))
        except ApiException as error:
            raise _interpret(error, self._bucket, self._url, len(lines)) from error
        except (HTTPError, OSError, UnicodeDecodeError) as error:
            reason = f"{type(error).__name__}: {error}"[:REASON_LENGTH_MAX]
            raise UnavailableError(
                f"no answer from {self._url} ({reason}); is InfluxDB running there, and is influxdb.url right?"
            ) from error
        status = self._client.api_client.last_response.status
        if status != _WRITTEN:
            # An unrelated server may answer every request with 200; treating that as an acknowledgement would lose
            # points.
            raise MisconfiguredError(
                f"expected HTTP {_WRITTEN} from {self._url}, got {status}; does influxdb.url point to InfluxDB?"
            )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()  # type: ignore[no-untyped-call] # the library does not type it


def _interpret(error: ApiException, bucket: str, url: str, points: int) -> WriteError:
    status = error.status or 0
    text = _message(error)
    reason = text[:REASON_LENGTH_MAX]
    is_own = any(name in (error.headers or ()) for name in _OWN_HEADERS)
    if status in _REFUSES_POINTS and is_own:
        is_shared = any(shared in text for shared in _SHARED_REASONS)
        return RefusedError(reason, refuses_all=is_shared and _dropped(text) == points)
    if status == _TOO_LARGE:
        return TooLargeError(f"HTTP {status} from {url}: {reason}", is_own=is_own)
    if status in _TRANSIENT or status >= _SERVER_ERRORS:
        return UnavailableError(f"HTTP {status}: {reason}", _retry_after_s(error))
    remedy = _REMEDIES.get(status, _NOT_OWN if not is_own else _ADDRESS)
    return MisconfiguredError(f"HTTP {status} from {url}, bucket {bucket}: {reason}; {remedy}")


def _message(error: ApiException) -> str:
    """Return ``message`` or ``error`` from InfluxDB's JSON, otherwise the body, or the HTTP reason if that is empty."""
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        for name in ("message", "error"):
            if isinstance(answer.get(name), str):
                return str(answer[name])
    return body.strip() or str(error.reason)


def _dropped(message: str) -> int | None:
    _before, found, count = message.rpartition("dropped=")
    return _whole(count) if found else None


def _retry_after_s(error: ApiException) -> float | None:
    # InfluxDB sends a number of seconds. HTTP also allows a date; in that case, the writer's own back-off applies.
    headers: Any = error.headers  # None if there was no response; the library's types do not say so
    given = str(headers.get("Retry-After", "")) if headers is not None else ""
    return _whole(given)


def _whole(text: str) -> int | None:
    """Parse a non-negative integer. Return None unless ``text`` consists of 1 to `_DIGITS_MAX` ASCII digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None
