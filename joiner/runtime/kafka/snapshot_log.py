"""The layout of a snapshot in the state topic: chunks and a manifest, in one of two slots. Does not access Kafka."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from joiner.runtime.model import (
    CHUNK_BYTES_MAX,
    FORMAT_VERSION,
    SLOTS,
    Checkpoint,
    Manifest,
    StateLog,
    chunk_key,
    encode,
    manifest_key,
)

Records = list[tuple[str, bytes | None]]
"""Records of the state topic as pairs of key and value. A value of None is a tombstone."""


@dataclass
class SnapshotPlace:
    """Where the newest snapshot is stored.

    ``serial``: its serial number, which determines its slot; -1 if there is none. ``chunks``: the number of chunks in
    each slot.
    """

    serial: int
    chunks: list[int]

    @classmethod
    def after(cls, state: StateLog) -> SnapshotPlace:
        """Return where the newest snapshot is stored. Raises `UnitStopped` if a manifest is unreadable."""
        newest = state.manifests()[:1]
        return cls(newest[0].serial if newest else -1, [state.chunks_in(slot) for slot in range(SLOTS)])


def snapshot_records(
    data: bytes, place: SnapshotPlace, checkpoint: Checkpoint, result_ends: Mapping[str, int]
) -> tuple[Records, SnapshotPlace]:
    """Return the records of a new snapshot taken at ``checkpoint``, manifest last, and the snapshot's place."""
    unit, serial = checkpoint.unit, place.serial + 1
    slot = serial % SLOTS
    parts = [data[at : at + CHUNK_BYTES_MAX] for at in range(0, len(data), CHUNK_BYTES_MAX)]
    records: Records = [(chunk_key(unit, slot, index), part) for index, part in enumerate(parts)]
    records += [(chunk_key(unit, slot, surplus), None) for surplus in range(len(parts), place.chunks[slot])]
    manifest = Manifest(
        FORMAT_VERSION,
        serial,
        slot,
        len(parts),
        len(data),
        hashlib.sha256(data).hexdigest(),
        checkpoint.offsets,
        checkpoint.fingerprint,
        dict(result_ends),
    )
    records.append((manifest_key(unit, slot), encode(manifest)))
    chunks = list(place.chunks)
    chunks[slot] = len(parts)
    return records, SnapshotPlace(serial, chunks)


def beginning(state: StateLog, checkpoint: Checkpoint, snapshot: bytes | None) -> Records:
    """Return the records to write before ``checkpoint``, so that a unit begins there instead of continuing ``state``.

    ``snapshot``: the unit's state at the checkpoint's offsets, or None if that is empty.

    The old records are deleted first, the old checkpoint with them: without its snapshots, the unit must not be
    continued from there if the rest is not written.
    """
    deleted: Records = [(key, None) for key in state.values]
    if snapshot is None:
        return deleted
    # The serial number is 1. A replay for missing output starts from the snapshot before the newest one, but if only
    # one is left and its number is not 0, it starts from that one. Here, nothing is due before it.
    records, _ = snapshot_records(snapshot, SnapshotPlace(0, [0] * SLOTS), checkpoint, checkpoint.result_ends)
    return deleted + records


def cut(records: Records, bytes_max: int) -> list[Records]:
    """Split records into parts with at most ``bytes_max`` bytes of values. A larger value gets a part of its own."""
    parts: list[Records] = []
    size = bytes_max + 1
    for key, value in records:
        size += len(value or b"")
        if size > bytes_max:
            parts.append([])
            size = len(value or b"")
        parts[-1].append((key, value))
    return parts
