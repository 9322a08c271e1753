"""Reading the state topic: the newest progress record of a unit, and its newest complete snapshot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec
from confluent_kafka import Consumer

from broker.settings import KafkaSettings
from joiner.run.clients import log_range, make_reader, read_to_end
from joiner.run.progress import (
    FORMAT_VERSION,
    SLOTS,
    Manifest,
    Progress,
    chunk_key,
    decode_format,
    decode_manifest,
    decode_progress,
    manifest_key,
    progress_key,
    unsettled_key,
)
from joiner.run.readers import Readers
from joiner.run.unit import UnitStopped

_TAIL: Final = 64
"""Records at the end of a state partition that are looked at first: every transaction ends with its progress."""


_SHOWN_MAX: Final = 5
"""Missing chunks that are named."""


@dataclass(frozen=True)
class StateLog:
    """What a unit's partition of the state topic holds: the last value of each key."""

    unit: int
    values: dict[str, bytes] = field(default_factory=dict)
    end: int = 0
    """The offset up to which it was read."""
    progress_at: int = -1
    """The offset of the newest progress record; -1 where there is none."""

    def progress(self) -> Progress | None:
        """The newest progress record; None where the unit was never begun."""
        value = self.values.get(progress_key(self.unit))
        return None if value is None else _decoded(self.unit, decode_progress, value)

    def unsettled(self) -> Progress | None:
        """Up to where results may be there already; None where nothing is to be settled (see `hanging`)."""
        value = self.values.get(unsettled_key(self.unit))
        return None if value is None else _decoded(self.unit, decode_progress, value)

    def manifests(self) -> list[Manifest]:
        """The manifests of both slots, the newest first."""
        values = (self.values.get(manifest_key(self.unit, slot)) for slot in range(SLOTS))
        found = [_decoded(self.unit, decode_manifest, value) for value in values if value is not None]
        return sorted(found, key=lambda manifest: -manifest.serial)

    def without_newest_snapshot(self) -> StateLog:
        """As if the newest snapshot had not been taken."""
        gone = {manifest_key(self.unit, manifest.slot) for manifest in self.manifests()[:1]}
        return replace(self, values={key: value for key, value in self.values.items() if key not in gone})

    def chunks_in(self, slot: int) -> int:
        """How many chunks lie in a slot, also those that no manifest counts."""
        prefix = f"{self.unit}/{slot}/"
        return sum(key.startswith(prefix) and not key.endswith("/manifest") for key in self.values)

    def snapshot(self, manifest: Manifest) -> bytes:
        """The bytes of a snapshot. Raises `UnitStopped` where a chunk is missing or altered."""
        keys = (chunk_key(self.unit, manifest.slot, index) for index in range(manifest.chunks))
        # No more: a manifest may count any number.
        missing = list(islice((key for key in keys if key not in self.values), _SHOWN_MAX))
        whole = b"" if missing else self._joined(manifest)
        if missing or hashlib.sha256(whole).hexdigest() != manifest.sha256:
            fault = f"lacks {', '.join(missing)}" if missing else "does not match its checksum"
            message = (
                f"unit {self.unit}: snapshot {manifest.serial} in the state topic {fault}: "
                "restore the topic, or start anew with `joiner reset`"
            )
            raise UnitStopped(message)
        return whole

    def _joined(self, manifest: Manifest) -> bytes:
        return b"".join(self.values[chunk_key(self.unit, manifest.slot, index)] for index in range(manifest.chunks))


def read_state(kafka: KafkaSettings, group: str, topic: str, unit: int) -> StateLog:
    """Everything in the unit's partition, read to its stable end."""
    return _read(kafka, group, topic, unit, last=None)


def read_on(consumer: Consumer, topic: str, state: StateLog) -> StateLog:
    """``state`` and what has come since.

    It holds what a reader of the whole log holds: compaction leaves the last of each key, and a tombstone for far
    longer than a unit is waited for.
    """
    _, end = log_range(consumer, topic, state.unit)
    values, progress_at = dict(state.values), state.progress_at
    if end > state.end:
        progress_at = max(progress_at, _add_values(values, consumer, topic, state.unit, state.end, end))
    return StateLog(state.unit, values, end, progress_at)


def read_newest(kafka: KafkaSettings, group: str, topic: str, unit: int, readers: Readers | None = None) -> StateLog:
    """What is enough to know the newest progress record, which is at the end of the partition in most cases."""
    if readers is not None and readers.state is not None:
        readers.state = read_on(readers.log, topic, readers.state)
        return readers.state
    consumer = readers.log if readers is not None else None
    newest = _read(kafka, group, topic, unit, _TAIL, consumer)
    return newest if newest.progress() is not None else _read(kafka, group, topic, unit, None, consumer)


def read_progress(
    kafka: KafkaSettings, group: str, topic: str, unit: int, readers: Readers | None = None
) -> Progress | None:
    """The newest progress record alone."""
    return read_newest(kafka, group, topic, unit, readers).progress()


class AppendedProgress(NamedTuple):
    """A progress record, and when it was written."""

    progress: Progress
    appended_ms: int


def read_appended(consumer: Consumer, topic: str, unit: int) -> AppendedProgress | None:
    """The newest progress record of a unit, by a consumer of `make_reader`; None where there is none."""
    low, end = log_range(consumer, topic, unit)
    for start in dict.fromkeys((max(low, end - _TAIL), low)):
        found = None
        for message in read_to_end(consumer, topic, unit, start, end):
            if message.key() == progress_key(unit).encode() and (value := message.value()) is not None:
                found = AppendedProgress(_decoded(unit, decode_progress, value), message.timestamp()[1])
        if found is not None:
            return found
    return None


def read_tried(consumer: Consumer, topic: str, unit: int, start: int, end: int) -> list[Progress]:
    """The progress records from ``start`` on, committed or not, and the notes (see `hanging`).

    ``consumer`` reads what is not committed, too.
    """
    keys = {progress_key(unit).encode(), unsettled_key(unit).encode()}
    return [
        _decoded(unit, decode_progress, value)
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
    """Take what is there; returns the offset of the last progress record, -1 where none is."""
    progress, progress_at = progress_key(unit), -1
    for message in read_to_end(consumer, topic, unit, start, end):
        # Replaced: a key that is no text is somebody else's, and none that is asked for.
        key, value = (message.key() or b"").decode(errors="replace"), message.value()
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
        if key == progress:
            progress_at = message.offset() or 0
    return progress_at


_Versioned = TypeVar("_Versioned", Progress, Manifest)


def _decoded(unit: int, decode: Callable[[bytes], _Versioned], value: bytes) -> _Versioned:
    try:
        version = decode_format(value)
        if version > FORMAT_VERSION:
            message = f"unit {unit}: the state topic was written by a newer release (format {version}); run that one"
            raise UnitStopped(message)
        return decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"unit {unit}: a record of the state topic cannot be read: {error}; is it written by another program?"
        raise UnitStopped(message) from error
