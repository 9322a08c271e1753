"""Reads a unit's partition of the state topic: the newest checkpoint, or the whole log, including snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from confluent_kafka import Consumer, Message

from joiner.runtime.kafka.clients import log_range, read_to_end
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.model import Checkpoint, StateLog, checkpoint_key, dangling_key, decode_checked, decode_checkpoint

TAIL: Final = 64
"""Number of records to read first, from the end of a state partition. The newest checkpoint is usually among them."""


def read_state(readers: Readers, unit: int) -> StateLog:
    """Read the whole log of the unit's state partition, up to its stable end."""
    return _read(readers, unit, last=None)


def read_on(readers: Readers, state: StateLog) -> StateLog:
    """Return ``state``, updated with the records appended since it was read.

    The result is the same as if the whole log were read again: compaction keeps the last record of each key, and keeps
    tombstones for much longer than a standby waits for a unit.
    """
    _, end = log_range(readers.log, readers.settings.state_topic, state.unit)
    values, checkpoint_at = dict(state.values), state.checkpoint_at
    if end > state.end:
        checkpoint_at = max(checkpoint_at, _add_values(values, readers, state.unit, state.end, end))
    return StateLog(state.unit, values, end, checkpoint_at)


def read_newest(readers: Readers, unit: int) -> StateLog:
    """Read enough of the log to include the newest checkpoint, which is usually at the end of the partition."""
    if readers.state is not None and readers.state.unit == unit:
        readers.state = read_on(readers, readers.state)
        return readers.state
    newest = _read(readers, unit, TAIL)
    return newest if newest.checkpoint() is not None else _read(readers, unit, None)


def read_checkpoint(readers: Readers, unit: int) -> Checkpoint | None:
    """Return the newest checkpoint of a unit, or None if there is none."""
    return read_newest(readers, unit).checkpoint()


class AppendedCheckpoint(NamedTuple):
    """A checkpoint and its append time."""

    checkpoint: Checkpoint
    appended_ms: int


def read_appended(readers: Readers, unit: int) -> AppendedCheckpoint | None:
    """Return the newest checkpoint of a unit and its append time, or None if there is none."""
    low, end = log_range(readers.log, readers.settings.state_topic, unit)
    for start in dict.fromkeys((max(low, end - TAIL), low)):
        found = None
        for message in _messages(readers.log, readers, unit, start, end):
            if message.key() == checkpoint_key(unit).encode() and (value := message.value()) is not None:
                found = AppendedCheckpoint(decode_checked(unit, decode_checkpoint, value), message.timestamp()[1])
        if found is not None:
            return found
    return None


def read_tried(readers: Readers, unit: int, start: int, end: int) -> list[Checkpoint]:
    """Return a unit's checkpoints between two offsets, committed or not, and its notes (see `ownership.dangling`)."""
    keys = {checkpoint_key(unit).encode(), dangling_key(unit).encode()}
    return [
        decode_checked(unit, decode_checkpoint, value)
        for message in _messages(readers.everything, readers, unit, start, end)
        if message.key() in keys and (value := message.value()) is not None
    ]


def _read(readers: Readers, unit: int, last: int | None) -> StateLog:
    low, high = log_range(readers.log, readers.settings.state_topic, unit)
    values: dict[str, bytes] = {}
    start = low if last is None else max(low, high - last)
    return StateLog(unit, values, high, _add_values(values, readers, unit, start, high))


def _add_values(values: dict[str, bytes], readers: Readers, unit: int, start: int, end: int) -> int:
    """Add the records between two offsets to ``values``. Return the last checkpoint's offset, or -1 if none exists."""
    checkpoint, checkpoint_at = checkpoint_key(unit), -1
    for message in _messages(readers.log, readers, unit, start, end):
        # A key that is not valid UTF-8 was written by another program and is never looked up, so any text will do.
        key, value = (message.key() or b"").decode(errors="replace"), message.value()
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
        if key == checkpoint:
            checkpoint_at = message.offset() or 0
    return checkpoint_at


def _messages(consumer: Consumer, readers: Readers, unit: int, start: int, end: int) -> Iterator[Message]:
    return read_to_end(consumer, readers.clock, readers.settings.state_topic, unit, start, end)
