"""Reading the state topic: the newest checkpoint of a unit, and its newest complete snapshot."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import Final, NamedTuple

from confluent_kafka import Consumer

from broker.settings import KafkaSettings
from joiner.runtime.kafka.clients import log_range, make_reader, read_to_end
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.model import Checkpoint, StateLog, checkpoint_key, dangling_key, decode_checked, decode_checkpoint

_TAIL: Final = 64
"""Records at the end of a state partition that are read first: every transaction ends with its checkpoint."""


def read_state(kafka: KafkaSettings, group: str, topic: str, unit: int) -> StateLog:
    """The whole log of the unit's state partition, read to its stable end."""
    return _read(kafka, group, topic, unit, last=None)


def read_on(consumer: Consumer, topic: str, state: StateLog) -> StateLog:
    """``state`` with what was appended since.

    The result equals that of reading the whole log: compaction keeps the last record of each key, and tombstones for
    far longer than a standby waits for a unit.
    """
    _, end = log_range(consumer, topic, state.unit)
    values, checkpoint_at = dict(state.values), state.checkpoint_at
    if end > state.end:
        checkpoint_at = max(checkpoint_at, _add_values(values, consumer, topic, state.unit, state.end, end))
    return StateLog(state.unit, values, end, checkpoint_at)


def read_newest(kafka: KafkaSettings, group: str, topic: str, unit: int, readers: Readers | None = None) -> StateLog:
    """As much of the log as the newest checkpoint takes, which is usually at the end of the partition."""
    if readers is not None and readers.state is not None:
        readers.state = read_on(readers.log, topic, readers.state)
        return readers.state
    consumer = readers.log if readers is not None else None
    newest = _read(kafka, group, topic, unit, _TAIL, consumer)
    return newest if newest.checkpoint() is not None else _read(kafka, group, topic, unit, None, consumer)


def read_checkpoint(
    kafka: KafkaSettings, group: str, topic: str, unit: int, readers: Readers | None = None
) -> Checkpoint | None:
    """The newest checkpoint; None if there is none."""
    return read_newest(kafka, group, topic, unit, readers).checkpoint()


class AppendedCheckpoint(NamedTuple):
    """A checkpoint and its append time."""

    checkpoint: Checkpoint
    appended_ms: int


def read_appended(consumer: Consumer, topic: str, unit: int) -> AppendedCheckpoint | None:
    """The newest checkpoint of a unit, by a consumer of `make_reader`; None if there is none."""
    low, end = log_range(consumer, topic, unit)
    for start in dict.fromkeys((max(low, end - _TAIL), low)):
        found = None
        for message in read_to_end(consumer, topic, unit, start, end):
            if message.key() == checkpoint_key(unit).encode() and (value := message.value()) is not None:
                found = AppendedCheckpoint(decode_checked(unit, decode_checkpoint, value), message.timestamp()[1])
        if found is not None:
            return found
    return None


def read_tried(consumer: Consumer, topic: str, unit: int, start: int, end: int) -> list[Checkpoint]:
    """The checkpoints from ``start`` to ``end``, committed or not, and the notes (see `ownership.dangling`).

    ``consumer`` reads uncommitted records.
    """
    keys = {checkpoint_key(unit).encode(), dangling_key(unit).encode()}
    return [
        decode_checked(unit, decode_checkpoint, value)
        for message in read_to_end(consumer, topic, unit, start, end)
        if message.key() in keys and (value := message.value()) is not None
    ]


def _read(
    kafka: KafkaSettings, group: str, topic: str, unit: int, last: int | None, kept: Consumer | None = None
) -> StateLog:
    with nullcontext(kept) if kept is not None else closing(make_reader(kafka, group)) as consumer:
        low, high = log_range(consumer, topic, unit)
        values: dict[str, bytes] = {}
        start = low if last is None else max(low, high - last)
        return StateLog(unit, values, high, _add_values(values, consumer, topic, unit, start, high))


def _add_values(values: dict[str, bytes], consumer: Consumer, topic: str, unit: int, start: int, end: int) -> int:
    """Add the records up to ``end``; returns the offset of the last checkpoint, -1 without one."""
    checkpoint, checkpoint_at = checkpoint_key(unit), -1
    for message in read_to_end(consumer, topic, unit, start, end):
        # With replacement: a key that is no text was written by another program, and is never looked up.
        key, value = (message.key() or b"").decode(errors="replace"), message.value()
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
        if key == checkpoint:
            checkpoint_at = message.offset() or 0
    return checkpoint_at
