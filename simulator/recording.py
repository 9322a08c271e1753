"""Reads a recorded events file, in file order or event-time order, and shifts the times of its events.

An event is a line with a JSON object that has a `Timestamp` in any format the pipeline accepts (broker/times.py, which
the connector also uses). Every other line is an *invalid line*. It is replayed unchanged and in place, and the
connector must reject it. The first invalid line is reported with the reason, so that users notice when they pass the
wrong kind of file.

An event that needs no change is sent byte for byte. If its time or its id changes, only these two values are replaced.
All other values keep their exact bytes (`msgspec.Raw`), so no number is rounded.

`pacing` decides when a message is sent, and `mqtt` how.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from broker.times import TIME_MAX_NS, TIME_MIN_NS, UNIT_NS, iso_text, mean_text, parse_time
from simulator.files import short_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_WHY_LENGTH_MAX = 200

LINE_BYTES_MAX = 16 * 1024 * 1024
"""Maximum length of a line in bytes, with its end: the largest event that the connector can be set to accept. A file
with a longer line is not a recording, and reading the line could take all memory."""

DIGITS_MAX = 20
"""Maximum number of characters, including the sign, of an integer that takes the fast path. Any int64 fits."""


class InvalidLineError(ValueError):
    """Raised if a line is not an event. The message says why."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects lines of a file, in file order: skips the first `skip` lines and selects the next `first` lines.

    If `first` is None, all remaining lines are selected.
    """

    skip: int = 0
    first: int | None = None

    def of(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the selected lines."""
        stop = None if self.first is None else self.skip + self.first
        return islice(lines, self.skip, stop)


@dataclass(slots=True)
class Survey:
    """A summary of the selected lines: how many there are, how many are invalid, and the range of event times in ns.

    `first_invalid` describes the first invalid line: its number among the selected lines (from 1) and the reason.
    """

    lines: int = 0
    invalid: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    first_invalid: tuple[int, str] | None = None

    @property
    def events(self) -> int:
        """Number of lines that are events."""
        return self.lines - self.invalid

    def round_ns(self, time_unit: str = "ms") -> int:
        """Return how far each round's times are shifted relative to the previous round, in ns.

        This is the range of event times plus the mean distance between them, in whole `time_unit`s. Each round thus
        starts at least one unit after the previous one has ended, and integer times stay integers. Returns 0 if there
        are no events.
        """
        if self.first_ns is None or self.last_ns is None:
            return 0
        span_ns, unit_ns = self.last_ns - self.first_ns, UNIT_NS[time_unit]
        step_ns = span_ns // max(1, self.events - 1)
        return -(-span_ns // unit_ns) * unit_ns + max(unit_ns, step_ns // unit_ns * unit_ns)

    def add(self, time_ns: int) -> None:
        """Count an event."""
        self.lines += 1
        if self.first_ns is None or self.last_ns is None:
            self.first_ns = self.last_ns = time_ns
        else:
            self.first_ns = min(self.first_ns, time_ns)
            self.last_ns = max(self.last_ns, time_ns)

    def add_invalid(self, why: str) -> None:
        """Count an invalid line."""
        self.lines += 1
        self.invalid += 1
        if self.first_invalid is None:
            self.first_invalid = self.lines, why


class Head(NamedTuple):
    """The parts of an event that the simulator reads. The id may have any type, or be missing."""

    time_ns: int
    is_text: bool
    """Whether the time is given as ISO-8601 text rather than as a number."""
    id: object


class _Head(msgspec.Struct):
    time: msgspec.Raw = msgspec.field(name="Timestamp")
    id: object = None


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


def read_head(line: bytes, time_unit: str = "ms") -> Head:
    """Return the time and the id of an event. A numeric time is in `time_unit`. Raises InvalidLineError."""
    try:
        head = _decode_head(line)
        text = bytes(head.time)
        if text[:1] == b'"':
            return Head(parse_time(_decode_text(text), time_unit), is_text=True, id=head.id)
        is_whole = len(text) <= DIGITS_MAX and text.removeprefix(b"-").isdigit()
        return Head(parse_time(int(text) if is_whole else text, time_unit), is_text=False, id=head.id)
    except (ValueError, RecursionError) as error:  # from msgspec, UTF-8 decoding, or the time
        raise InvalidLineError(str(error)) from error


def shown(why: str) -> str:
    """Return a reason as a single line of limited length, because it may quote the input."""
    return why if len(why) <= _WHY_LENGTH_MAX and why.isprintable() else repr(why[:_WHY_LENGTH_MAX])


def count_members(line: bytes) -> int:
    """Return the number of members of a JSON object, counting repeated names. Raises ValueError and RecursionError."""
    return len(json.loads(line, object_pairs_hook=list, parse_int=len, parse_float=len))


class StreamedRecording:
    """A recording in file order. Every round reads the file again, so memory use is constant."""

    def __init__(self, path: Path, selection: Selection, time_unit: str = "ms") -> None:
        self._path = path
        self._selection = selection
        self._unit = time_unit

    def survey(self) -> Survey:
        """Read the selected lines once and return their summary. Raises OSError."""
        found = Survey()
        for line in self:
            try:
                found.add(read_head(line, self._unit).time_ns)
            except InvalidLineError as why:
                found.add_invalid(str(why))
        return found

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            for line in self._selection.of(short_lines(file, LINE_BYTES_MAX)):
                yield line.removesuffix(b"\n")


class SortedRecording:
    """A recording in event-time order. Lines with equal times stay in file order.

    An invalid line stays directly after the line that precedes it in the file. Only the order is kept in memory, about
    60 bytes per line; the lines themselves are read from the file again.
    """

    def __init__(self, path: Path, selection: Selection, time_unit: str = "ms") -> None:
        self._path = path
        self._selection = selection
        self._unit = time_unit
        self._survey = Survey()
        self._starts = array("q")
        self._order: list[int] | None = None

    def survey(self) -> Survey:
        """Read the selected lines once, determine their order, and return their summary. Raises OSError."""
        self._survey, self._starts = Survey(), array("q")
        times_ns = array("q")
        place_ns = TIME_MIN_NS - 1
        with self._path.open("rb") as file:
            for line in self._selection.of(self._located(file)):
                try:
                    place_ns = read_head(line.removesuffix(b"\n"), self._unit).time_ns
                    self._survey.add(place_ns)
                except InvalidLineError as why:
                    self._survey.add_invalid(str(why))
                times_ns.append(place_ns)
        del self._starts[: len(self._starts) - len(times_ns)]  # the starts of the skipped lines
        self._order = sorted(range(len(times_ns)), key=times_ns.__getitem__)
        return self._survey

    def __iter__(self) -> Iterator[bytes]:
        if self._order is None:
            self.survey()
        with self._path.open("rb") as file:
            for position in self._order or ():
                file.seek(self._starts[position])
                line = file.readline(LINE_BYTES_MAX)
                if not line:
                    message = f"{self._path} has been truncated while it was read"
                    raise OSError(message)
                yield line.removesuffix(b"\n")

    def _located(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the lines with their newlines, and record the byte offset where each one starts."""
        start = 0
        for line in short_lines(file, LINE_BYTES_MAX):
            self._starts.append(start)
            start += len(line)
            yield line


Recording = StreamedRecording | SortedRecording


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish. `id`: the event's id, or "" if it has none. `invalid`: whether the line is invalid."""

    payload: bytes
    id: str
    invalid: bool


def replay_messages(
    recording: Recording, *, rounds: int | None, shift_ns: int, round_ns: int, time_unit: str = "ms"
) -> Iterator[Message]:
    """Yield all messages of a replay.

    `rounds`: how often the recording is replayed; None means forever. All times are shifted by `shift_ns`, and by a
    further `round_ns` in each round after the first. From the second round on, the round number is appended to each id
    (`…-2`), so that ids stay unique. The replay ends if a round has no lines.
    """
    for number in count() if rounds is None else range(rounds):
        empty = True
        for line in recording:
            empty = False
            yield rewrite(line, shift_ns=shift_ns + number * round_ns, round_number=number, time_unit=time_unit)
        if empty:
            return


def rewrite(line: bytes, *, shift_ns: int, round_number: int, time_unit: str = "ms") -> Message:
    """Return the message for a line. Its time is shifted by `shift_ns`. An invalid line is returned unchanged.

    In every round except the first (`round_number` 0), an event that has an id gets a new one.
    """
    try:
        head = read_head(line, time_unit)
    except InvalidLineError:
        return Message(line, "", invalid=True)
    event_id = "" if head.id is None else head.id if isinstance(head.id, str) else _encode(head.id).decode()
    if not shift_ns and not round_number:
        return Message(line, event_id, invalid=False)
    try:
        fields = _decode_fields(line)
        # If a name occurs twice, the decoder silently keeps the last value, but the connector would refuse the event.
        if count_members(line) != len(fields):
            return Message(line, "", invalid=True)
    except (ValueError, RecursionError):  # in a part that read_head does not decode
        return Message(line, "", invalid=True)
    if shift_ns:
        fields["Timestamp"] = msgspec.Raw(_time(head.time_ns + shift_ns, time_unit, is_text=head.is_text))
    if round_number and head.id is not None:
        event_id = f"{event_id}-{round_number + 1}"
        fields["id"] = msgspec.Raw(_encode(event_id))
    return Message(_encode(fields), event_id, invalid=False)


def _time(time_ns: int, time_unit: str, *, is_text: bool) -> bytes:
    """Encode a time as JSON. A time that is out of range is always written as a number, which the connector refuses."""
    if is_text and TIME_MIN_NS <= time_ns <= TIME_MAX_NS:
        return _encode(iso_text(time_ns))
    return mean_text(time_ns, time_ns, time_unit).encode()
