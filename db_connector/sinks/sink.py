"""The interface of all sinks, how they read a result, and the errors of a write.

WriteError
  RefusedError         some of these results will never be accepted; the rest may or may not have been written
  TooLargeError        the request is too large; fewer results may be accepted
  UnavailableError     a transient failure (unreachable, overloaded, too slow); retry
  MisconfiguredError   an address, a token, a table or a permission is wrong; retry, and log an error
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from broker.times import TIME_MAX_NS, TIME_MIN_NS, UNIT_NS, point_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

REASON_LENGTH_MAX: Final = 2_000
"""Maximum length of an error message from a database. It is truncated because it may repeat every result."""

_TIME_LENGTH_MAX: Final = 32
"""Maximum number of characters in a valid mean time: a sign, 20 digits, a point and 10 decimals."""


class WriteError(Exception):
    """The sink did not acknowledge a write. The exception's message gives the reason."""


class RefusedError(WriteError):
    """Some results will never be accepted. ``refuses_all``: whether the reason applies to each result of the write."""

    def __init__(self, reason: str, *, refuses_all: bool = False) -> None:
        super().__init__(reason)
        self.refuses_all = refuses_all


class TooLargeError(WriteError):
    """The request is too large. ``is_own``: whether the database itself rejected it, rather than a gateway."""

    def __init__(self, reason: str, *, is_own: bool = True) -> None:
        super().__init__(reason)
        self.is_own = is_own


class UnavailableError(WriteError):
    """The sink cannot accept writes at the moment. ``retry_after_s``: the wait it requested, if any."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class MisconfiguredError(WriteError):
    """The sink rejects every write until an operator fixes the configuration; the message says how."""


class OutputClosedError(Exception):
    """The reader of an output stream has closed it, so nothing more can be written."""


class OutputFailedError(Exception):
    """An output stream has failed in the middle of a write, so nothing more can be written to it."""


class UnrepresentableError(ValueError):
    """The sink cannot represent a result. The message gives the reason, which goes into the dead letter."""


class Result(Protocol):
    """The fields of a result (`broker.wire.records.Joined` or an aligned row) that sinks write."""

    @property
    def thing(self) -> str: ...  # noqa: D102 - described in broker.wire.records
    @property
    def quantity(self) -> str: ...  # noqa: D102 - as above
    @property
    def phenomenonTime(self) -> int | msgspec.Raw: ...  # noqa: D102, N802 - as above, the wire's own name
    @property
    def result(self) -> float | dict[str, float]: ...  # noqa: D102 - as above
    @property
    def id(self) -> str: ...  # noqa: D102 - as above
    @property
    def tie(self) -> str: ...  # noqa: D102 - as above


class Place(NamedTuple):
    """Where a result is in the result topic.

    ``position``: the offset of its message, shifted left by `broker.wire.records.ROW_BITS`, plus its row in the
    message.
    """

    partition: int
    position: int


class Sink(Protocol):
    """A database or stream that accepts results. Used by one thread at a time, except for `encode`."""

    @property
    def name(self) -> str:
        """What messages call this kind of sink, such as ``InfluxDB``."""
        ...

    @property
    def place(self) -> str:
        """Where this sink writes, for messages."""
        ...

    @property
    def target(self) -> str:
        """Identifies the data that this sink writes. Committed with each offset; see `db_connector.kafka.target`."""
        ...

    def begin(self, topic_id: str) -> None:
        """Note the id that Kafka gave the result topic when it was created. Called before the first `encode`."""
        ...

    def encode(self, result: Result, place: Place) -> bytes:
        """Return the line for a result, without a trailing newline. Raises `UnrepresentableError`. Thread-safe."""
        ...

    def write(self, lines: Sequence[bytes]) -> None:
        """Write the results of these lines. Returns once all are stored.

        Raises `WriteError`, and for an output stream `OutputClosedError` or `OutputFailedError`.
        """
        ...

    def probe(self) -> None:
        """Check whether the sink would accept results. Raises as `write` does."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def time_of(result: Result, time_unit: str) -> tuple[int, bool]:
    """Return a result's time in nanoseconds, rounded down, and whether half a nanosecond has been cut off.

    ``time_unit``: the unit of its ``phenomenonTime``, a key of `UNIT_NS`. Raises `UnrepresentableError`.
    """
    time = result.phenomenonTime
    # bytes(n) of an int n would be n zero bytes.
    text = b"%d" % time if isinstance(time, int) else bytes(time)
    if len(text) > _TIME_LENGTH_MAX or b"e" in text or b"E" in text:
        # A number with an exponent could expand to a billion digits. No service in this pipeline writes exponents.
        message = f"time {text[:_TIME_LENGTH_MAX]!r} is not a plain number of at most {_TIME_LENGTH_MAX} characters"
        raise UnrepresentableError(message)
    try:
        time_ns, half = (int(text) * UNIT_NS[time_unit], False) if text.isdigit() else point_time(text, time_unit)
    except ValueError as error:
        raise UnrepresentableError(str(error)) from error
    if not TIME_MIN_NS <= time_ns <= TIME_MAX_NS:
        message = f"time {text.decode(errors='replace')} is outside the years 1678-2261"
        raise UnrepresentableError(message)
    return time_ns, half


def reason_of(error: Exception) -> str:
    """Return the message of a library's error on one line, at most `REASON_LENGTH_MAX` characters long."""
    return " ".join(str(error).split())[:REASON_LENGTH_MAX]


def values_of(result: Result) -> dict[str, float]:
    """Return ``result``, or ``left`` and ``right`` if the join keeps both values. Raises `UnrepresentableError`."""
    value = result.result
    if not isinstance(value, dict):
        return {"result": finite(value)}
    if value.keys() != {"left", "right"}:
        message = f"result has the members {sorted(value)[:8]} instead of left and right"
        raise UnrepresentableError(message)
    return {"left": finite(value["left"]), "right": finite(value["right"])}


def columns_of(result: Result) -> dict[str, float | None] | None:
    """Return the columns of an aligned row, or None for a pair. Raises `UnrepresentableError`.

    A missing value is None.
    """
    columns: dict[str, float | None] | None = getattr(result, "values", None)
    if columns is None:
        return None
    return {name: None if value is None else finite(value) for name, value in columns.items()}


def finite(value: Any) -> float:
    """Return a value as a float. Raises `UnrepresentableError` if it is infinite or not a number."""
    number = float(value)
    if not math.isfinite(number):
        message = f"the value {value} is not a finite number"
        raise UnrepresentableError(message)
    return number
