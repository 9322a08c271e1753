"""InfluxDB through its client library: one write, and what each answer means.

Sorts the many ways a write may fail into the four that matter to the writer, drawn below. What is to be
done about them is the writer's; that an answer of 400 or 422 blames the points is believed only where it says
in its headers that it is InfluxDB's own, for a gateway or a wrong port answers 400 as well, in JSON too, and then no
point is to blame.

    WriteError
      RefusedError   some points of the body will never be taken; the others may or may not have been written
      TooLargeError        the body is too large, in fewer points it may be taken
      UnavailableError     nobody's fault for long: away, overloaded, too slow; again later
      MisconfiguredError   an operator's fault: token, database, address; again later, and loudly
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Protocol

from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from broker.settings import InfluxdbSettings
    from db_connector.settings import ConnectorSettings

_NS_IN_MS: Final = 1_000_000
_WRITTEN: Final = 204
"""The one answer that acknowledges a write."""

_BLAMES_POINTS: Final = frozenset({400, 422})
_TOO_LARGE: Final = 413
_PASSING: Final = frozenset({0, 408, 429})
"""No answer at all (a broken TLS connection), too slow, too many requests."""
_SERVER_ERRORS: Final = 500
_OWN: Final = ("X-Influxdb-Version", "X-Platform-Error-Code")
"""Headers by which InfluxDB's answers are known: 1.8 and 2.x send the first, all of 2.x the second with an error."""

_DIGITS_MAX: Final = 18
_REASON_LENGTH_MAX: Final = 2_000
"""Characters of the database's message that are kept: it repeats each line that it could not read."""

_WAYS_OUT: Final = {
    401: "check influxdb.token (or token_file) in the settings",
    403: "the user or token may not write there: grant it, or check influxdb.token and influxdb.bucket",
    404: "create the database, or check influxdb.url and influxdb.bucket",
}

_ADDRESS: Final = "is influxdb.url the address of InfluxDB, and its scheme (http, https) right?"
_NOT_ITS_OWN: Final = (
    f"the answer does not say that InfluxDB gave it ({_OWN[0]}): {_ADDRESS} A gateway in between must let that pass"
)


class WriteError(Exception):
    """A write that was not acknowledged; ``str`` is the reason."""


class RefusedError(WriteError):
    """Some points will never be taken; ``dropped`` is how many, as far as the database says."""

    def __init__(self, reason: str, dropped: int | None = None) -> None:
        super().__init__(reason)
        self.dropped = dropped


class TooLargeError(WriteError):
    """More bytes than the database takes in one request; ``is_own``: it says so itself, and no gateway before it."""

    def __init__(self, reason: str, *, is_own: bool = True) -> None:
        super().__init__(reason)
        self.is_own = is_own


class UnavailableError(WriteError):
    """The database cannot take it now; ``retry_after_s`` is what it asks for."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class MisconfiguredError(WriteError):
    """The database will not take anything until an operator has done something; the text says what."""


class Database(Protocol):
    """Where points go."""

    def write(self, body: bytes) -> None:
        """Write lines of line protocol, times in ns. Returns once all are acknowledged. Raises WriteError."""


class InfluxDatabase:
    """InfluxDB 2.x or 1.8, over one kept connection. One thread at a time."""

    def __init__(self, influxdb: InfluxdbSettings, settings: ConnectorSettings) -> None:
        """Makes no connection yet. Raises SettingsError where the token's file cannot be read."""
        self._bucket, self._org, self._url = influxdb.bucket, influxdb.org, influxdb.url
        self._client = InfluxDBClient(
            url=influxdb.url,
            token=influxdb.secret(),
            org=influxdb.org,
            timeout=settings.request_timeout // _NS_IN_MS,
            enable_gzip=settings.gzip,
            ssl_ca_cert=str(influxdb.tls_ca_file) if influxdb.tls_ca_file else None,
            # The writer repeats, with its own back-off.
            retries=False,
        )
        self._api = self._client.write_api(write_options=SYNCHRONOUS)

    def write(self, body: bytes) -> None:
        """See `Database.write`."""
        try:
            self._api.write(self._bucket, self._org, body)
        except ApiException as error:
            raise _meaning(error, self._bucket, self._url) from error
        except (HTTPError, OSError, UnicodeDecodeError) as error:
            reason = f"{type(error).__name__}: {error}"[:_REASON_LENGTH_MAX]
            raise UnavailableError(
                f"no answer from {self._url} ({reason}); is InfluxDB running there, and is influxdb.url right?"
            ) from error
        status = self._client.api_client.last_response.status
        if status != _WRITTEN:
            # Some other server may say 200 to anything; taking that for an acknowledgement would lose points.
            raise MisconfiguredError(
                f"HTTP {status} from {self._url}, not {_WRITTEN}; is influxdb.url the address of InfluxDB?"
            )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()  # type: ignore[no-untyped-call] # the library types it not


def _meaning(error: ApiException, bucket: str, url: str) -> WriteError:
    status = error.status or 0
    text = _message(error)
    reason = text[:_REASON_LENGTH_MAX]
    is_own = any(name in (error.headers or ()) for name in _OWN)
    if status in _BLAMES_POINTS and is_own:
        return RefusedError(reason, _dropped(text))
    if status == _TOO_LARGE:
        return TooLargeError(f"HTTP {status} from {url}: {reason}", is_own=is_own)
    if status in _PASSING or status >= _SERVER_ERRORS:
        return UnavailableError(f"HTTP {status}: {reason}", _retry_after_s(error))
    way_out = _WAYS_OUT.get(status, _NOT_ITS_OWN if not is_own else _ADDRESS)
    return MisconfiguredError(f"HTTP {status} from {url}, bucket {bucket}: {reason}; {way_out}")


def _message(error: ApiException) -> str:
    """What the answer says: the text of ``error`` or ``message`` in JSON, as InfluxDB writes it, or its body."""
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
    # Seconds are what InfluxDB sends; a date, which HTTP allows too, falls back on the own back-off.
    headers: Any = error.headers  # None where there was no answer, which the library does not say
    given = str(headers.get("Retry-After", "")) if headers is not None else ""
    return _whole(given)


def _whole(text: str) -> int | None:
    """Digits as a number; `str.isdigit` alone takes some that `int` does not, and `int` not so many."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None
