"""A recorded events file: reading it in either order, and moving its times.

An event is a line that is a JSON object with an integer `Timestamp` in ms which the pipeline can hold (1678
to 2261). Every other line is an *odd line*: it is replayed as it is and where it is, because judging it is
the connector's work, and a replay that hides bad lines would hide what is to be tested.

A line that needs no change is passed on byte for byte. Where the time or the id has to change, only these two
values are replaced: all others keep their very bytes (`msgspec.Raw`), so that no number is ever rounded.

Not here: what is sent when (`pacing`), and how (`publishing`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, BinaryIO

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

TIMESTAMP_MS_MAX = (2**63 - 1) // 1_000_000
"""The largest distance from 1970 in ms that fits int64 ns: times beyond it cannot enter the pipeline."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The lines of a file that take part, counted in the file's own order: `first` lines after `skip`.

    `first` None means all.
    """

    skip: int = 0
    first: int | None = None

    def of(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The selected ones of `lines`."""
        stop = None if self.first is None else self.skip + self.first
        return islice(lines, self.skip, stop)


@dataclass(slots=True)
class Survey:
    """What a selection holds: the number of lines, the odd ones among them, and the range of times in ms."""

    lines: int = 0
    odd: int = 0
    first_ms: int | None = None
    last_ms: int | None = None

    @property
    def events(self) -> int:
        """Lines that are events."""
        return self.lines - self.odd

    @property
    def round_ms(self) -> int:
        """By how much a further round is later: the range and one mean step, at least 1 ms.

        So the first time of a round lies after the last time of the round before.
        """
        if self.first_ms is None or self.last_ms is None:
            return 0
        span_ms = self.last_ms - self.first_ms
        return span_ms + max(1, span_ms // max(1, self.events - 1))

    def add(self, timestamp_ms: int | None) -> None:
        """Count one line; None is the time of an odd one."""
        self.lines += 1
        if timestamp_ms is None:
            self.odd += 1
        elif self.first_ms is None or self.last_ms is None:
            self.first_ms = self.last_ms = timestamp_ms
        else:
            self.first_ms = min(self.first_ms, timestamp_ms)
            self.last_ms = max(self.last_ms, timestamp_ms)


class Head(msgspec.Struct):
    """What the simulator itself reads of an event. The id may be of any type or missing."""

    timestamp_ms: int = msgspec.field(name="Timestamp")
    id: object = None


_decode_head = msgspec.json.Decoder(Head).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


def read_head(line: bytes) -> Head | None:
    """Time and id of an event; None for an odd line."""
    try:
        head = _decode_head(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return head if -TIMESTAMP_MS_MAX <= head.timestamp_ms <= TIMESTAMP_MS_MAX else None


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file without their newline and otherwise byte for byte; an empty line is a line."""
    for line in file:
        yield line.removesuffix(b"\n")


class StreamedRecording:
    """The file's own order, read anew for each round: needs no memory whatever the size."""

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path = path
        self._selection = selection

    def survey(self) -> Survey:
        """Read the selection once. OSError if the file cannot be read."""
        found = Survey()
        for line in self:
            head = read_head(line)
            found.add(None if head is None else head.timestamp_ms)
        return found

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            yield from self._selection.of(read_lines(file))


class SortedRecording:
    """Event-time order, stable for equal times; an odd line stays behind the line before it in the file.

    Only the order is held in memory (about 60 bytes a line), the lines are read from the file again.
    """

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path = path
        self._selection = selection
        self._survey = Survey()
        self._starts = array("q")
        self._order: list[int] | None = None

    def survey(self) -> Survey:
        """Read the selection once and find its order. OSError if the file cannot be read."""
        self._survey, self._starts = Survey(), array("q")
        times_ms = array("q")
        place_ms = -TIMESTAMP_MS_MAX - 1
        with self._path.open("rb") as file:
            for line in self._selection.of(self._located(file)):
                head = read_head(line.removesuffix(b"\n"))
                self._survey.add(None if head is None else head.timestamp_ms)
                place_ms = place_ms if head is None else head.timestamp_ms
                times_ms.append(place_ms)
        del self._starts[: len(self._starts) - len(times_ms)]  # those of the skipped lines
        self._order = sorted(range(len(times_ms)), key=times_ms.__getitem__)
        return self._survey

    def __iter__(self) -> Iterator[bytes]:
        if self._order is None:
            self.survey()
        with self._path.open("rb") as file:
            for position in self._order or ():
                file.seek(self._starts[position])
                yield file.readline().removesuffix(b"\n")

    def _located(self, file: BinaryIO) -> Iterator[bytes]:
        """The lines with their newline, while the place where each starts is noted."""
        start = 0
        for line in file:
            self._starts.append(start)
            start += len(line)
            yield line


Recording = StreamedRecording | SortedRecording


@dataclass(frozen=True, slots=True)
class Message:
    """One message to publish: `id` is the event's id ("" without one), `odd` marks a line that is none."""

    payload: bytes
    id: str
    odd: bool


def replay_messages(recording: Recording, *, rounds: int | None, shift_ms: int, round_ms: int) -> Iterator[Message]:
    """All messages of a replay.

    `rounds` None means without end. All times are moved by `shift_ms`, and by `round_ms` more in every round;
    from the second round on every id gets the round's number appended (`…-2`), because one id is one event.
    Ends after a round without any line.
    """
    for number in count() if rounds is None else range(rounds):
        empty = True
        for line in recording:
            empty = False
            yield rewrite(line, shift_ms=shift_ms + number * round_ms, round_number=number)
        if empty:
            return


def rewrite(line: bytes, *, shift_ms: int, round_number: int) -> Message:
    """The message for a line: moved by `shift_ms`, with a new id from the second round (number 1) on."""
    head = read_head(line)
    if head is None:
        return Message(line, "", odd=True)
    event_id = "" if head.id is None else head.id if isinstance(head.id, str) else _encode(head.id).decode()
    if not shift_ms and not round_number:
        return Message(line, event_id, odd=False)
    fields = _decode_fields(line)
    fields["Timestamp"] = msgspec.Raw(_encode(head.timestamp_ms + shift_ms))
    if round_number and head.id is not None:
        event_id = f"{event_id}-{round_number + 1}"
        fields["id"] = msgspec.Raw(_encode(event_id))
    return Message(_encode(fields), event_id, odd=False)
