"""Is the end of a partition read backwards, without gaps, and never more than the limits allow?"""

from __future__ import annotations

from typing import Any

import pytest

from control.facts.lookup import tail
from control.facts.lookup.tail import Limits, Tail
from joiner.runtime.kafka.clients import EOF_CODE
from tests.manual_clock import ManualClock

PLACE = ("topic", 3)


class Message:
    """A message, or the event that a partition has been read to its end."""

    def __init__(self, offset: int, value: bytes | None) -> None:
        self._offset, self._value = offset, value

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> Any:
        return None if self._value is not None else self

    def code(self) -> int:
        return EOF_CODE


class Log:
    """A consumer of one partition. ``sizes``: of the messages by offset; offsets without one are gaps."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.sizes, self.end = sizes, max(sizes, default=-1) + 1
        self.read: list[int] = []
        self._at = 0

    def assign(self, places: list[Any]) -> None:
        (place,) = places
        assert (place.topic, place.partition) == PLACE
        self._at = place.offset

    def unassign(self) -> None:
        self._at = self.end

    def consume(self, count: int, _wait_s: float) -> list[Message]:
        found = list[Message]()
        while len(found) < min(count, 70) and self._at < self.end:
            if self._at in self.sizes:
                found.append(Message(self._at, bytes(self.sizes[self._at] - 1)))
                self.read.append(self._at)
            self._at += 1
        return found or [Message(self.end, None)]


def parts_of(log: Log, low: int, end: int, *, has_many: bool = False) -> tuple[Tail, list[list[int]]]:
    made = Tail(log, ManualClock(), PLACE, (low, end), has_many=has_many)  # type: ignore[arg-type] # a stand-in
    return made, [[int(one.offset() or 0) for one in part] for part in made.parts(lambda: None)]


@pytest.mark.parametrize("gap", [1, 2, 5])
@pytest.mark.parametrize("has_many", [False, True])
def test_everything_is_read_once_from_the_newest_part_to_the_oldest(gap: int, *, has_many: bool) -> None:
    log = Log(dict.fromkeys(range(3, 5_000, gap), 100))
    found, parts = parts_of(log, 3, 4_990, has_many=has_many)
    assert [offset for part in reversed(parts) for offset in part] == list(range(3, 4_990, gap))
    assert len(parts) > 2
    assert (found.begin, found.end, found.is_whole) == (3, 4_990, True)
    sizes = [len(part) for part in parts]
    assert sizes[:-1] == sorted(sizes[:-1]), "each part is larger, so a long search needs few of them"


def test_reading_stops_as_soon_as_nobody_wants_more() -> None:
    log = Log(dict.fromkeys(range(30_000), 100))
    made = Tail(log, ManualClock(), PLACE, (0, 30_000), has_many=False)  # type: ignore[arg-type] # a stand-in
    next(made.parts(lambda: None))
    assert made.begin == 29_500
    assert len(log.read) < 600


def test_no_more_than_so_many_offsets_are_read() -> None:
    found, parts = parts_of(Log(dict.fromkeys(range(50_000), 10)), 0, 50_000)
    assert sum(map(len, parts)) == tail.MESSAGES_MAX
    assert (found.begin, found.is_whole) == (30_000, False)


@pytest.mark.parametrize("size", [1_000, 60_000, 3_000_000, 20_000_000])
def test_no_more_than_so_many_bytes_are_read(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MESSAGES_MAX", 100_000)
    count = min(20_000, 200_000_000 // size)
    log = Log(dict.fromkeys(range(count), size))
    found, parts = parts_of(log, 0, count, has_many=size > 100_000)
    read = [offset for part in reversed(parts) for offset in part]
    assert read == list(range(found.begin, count))
    assert not found.is_whole
    total = size * len(read)
    assert tail.BYTES_MAX - size < total < tail.BYTES_MAX + size


@pytest.mark.parametrize(("limits", "read"), [(Limits(7, 10_000), 7), (Limits(700, 60_000), 600), (Limits(1, 1), 1)])
def test_a_caller_may_set_other_limits(limits: Limits, read: int) -> None:
    log = Log(dict.fromkeys(range(5_000), 100))
    made = Tail(log, ManualClock(), PLACE, (0, 5_000), limits=limits)  # type: ignore[arg-type] # a stand-in
    assert sum(map(len, made.parts(lambda: None))) == read
    assert (made.begin, made.is_whole) == (5_000 - read, False)


def test_of_a_part_that_is_too_large_the_newest_messages_are_kept() -> None:
    # The first part has small messages only, so those before are expected to be small, too.
    sizes = dict.fromkeys(range(1_000), 100_000) | dict.fromkeys(range(1_000, 1_500), 100)
    found, parts = parts_of(Log(sizes), 0, 1_500)
    assert [len(part) for part in parts] == [500, 83]
    assert (found.begin, found.is_whole) == (917, False)


def test_an_empty_partition_has_no_parts() -> None:
    found, parts = parts_of(Log({}), 0, 0)
    assert (parts, found.is_whole) == ([], True)


def test_a_check_ends_the_reading() -> None:
    def check() -> None:
        raise TimeoutError

    made = Tail(Log({0: 10}), ManualClock(), PLACE, (0, 1), has_many=False)  # type: ignore[arg-type] # a stand-in
    with pytest.raises(TimeoutError):
        next(made.parts(check))
