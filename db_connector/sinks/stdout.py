"""Writes results to standard output as JSON lines, for pipes.

It writes to the file descriptor. A buffer of Python's would lose the rest of a short write, or be locked by a write
that waits for a slow reader while the process ends.
"""

from __future__ import annotations

import os
import select
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.settings import SettingsError
from db_connector.sinks.sink import OutputClosedError, OutputFailedError, columns_of, time_of, values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from db_connector.sinks.sink import Place, Result

_MEMBERS: Final = ("thing", "quantity", "phenomenonTime", "result", "id", "tie")

_encoder: Final = msgspec.json.Encoder()


class StdoutSink:
    """Standard output. A pipe cannot replace a line, so results that are read again are also written again."""

    name = "standard output"
    place = "standard output"
    target = "standard output"

    def __init__(self, time_unit: str) -> None:
        """``time_unit``: the unit of the results' times. Raises `SettingsError` if standard output is closed."""
        if sys.stdout is None:  # as after `>&-`
            raise SettingsError("db_connector.sink is stdout, but standard output is closed")
        self._time_unit = time_unit
        self._descriptor = sys.stdout.fileno()

    def begin(self, topic_id: str) -> None:
        """See `Sink.begin`. It does not matter, because nothing written can be looked up."""

    def encode(self, result: Result, place: Place) -> bytes:  # noqa: ARG002 - as above
        """Return the result as in the result topic, without the members that describe the joined records."""
        time_of(result, self._time_unit)
        values_of(result)
        members: dict[str, Any] = {name: getattr(result, name) for name in _MEMBERS}
        if not result.tie:
            del members["tie"]
        if (columns := columns_of(result)) is not None:
            members["values"] = columns
        return _encoder.encode(members)

    def probe(self) -> None:
        """Nothing can be wrong before the first write."""

    def write(self, lines: Sequence[bytes]) -> None:
        """See `Sink.write`."""
        rest = memoryview(b"".join(line + b"\n" for line in lines))
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except BrokenPipeError as error:
                raise OutputClosedError("the reader of standard output has ended") from error
            except OSError as error:
                raise OutputFailedError(f"standard output: {error.strerror}") from error

    def close(self) -> None:
        """Leave standard output open, because it belongs to the process."""
