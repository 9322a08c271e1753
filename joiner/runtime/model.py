"""Types shared by several packages: `UnitStopped`, and the records of the state topic ``<application>.state``.

The state topic has one compacted partition per unit, written under the unit's ``transactional.id``, with these keys:

    <unit>/progress           `Checkpoint`, written in every transaction of the unit; the only source of truth
    <unit>/<slot>/<i>         chunk i of the snapshot in that slot: raw bytes
    <unit>/<slot>/manifest    `Manifest` of that snapshot, written last
    <unit>/unsettled          `Checkpoint` up to which results may have been written, if Kafka has failed to end a
                              transaction (see `ownership.dangling`). It is the only record written outside a
                              transaction. The claim that repairs the failure removes it

Two slots alternate, so that a complete snapshot exists while the next one is being written. A small snapshot and its
manifest are written in one transaction; a large snapshot's manifest is in the last of its transactions. Surplus chunks
in a slot are deleted by tombstones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec


class UnitStopped(Exception):
    """The unit cannot continue. The message gives the cause and the remedy. If a batch failed, it was not committed."""


FORMAT_VERSION: Final = 1
"""The format version of these records. Readers refuse a higher version."""

SLOTS: Final = 2

WATERMARK_COUNT: Final = "marks"
"""The key in `Checkpoint.counts` for the number of watermarks read."""

CHUNK_BYTES_MAX: Final = 512 * 1024
"""Maximum size of a snapshot chunk, in bytes: well below Kafka's default limit of 1 MiB per message."""


RESET_RUN: Final = "reset"
"""The run id that a reset writes to the checkpoint. It is not the id of any real run, so no runner owns the unit."""


_MOVING: Final = "moving"


class OnTheWay(NamedTuple):
    """A unit without an owner: the site ``source`` has released it for a move, and no runner has claimed it yet."""

    move: str
    source: str

    def run(self) -> str:
        """Return the run id to write in the source's last checkpoint, where it takes the place of an owner.

        It never equals a real run id, so that no runner mistakes the unit for its own.
        """
        return f"{_MOVING}:{self.move}:{self.source}"


class JoinSummary(msgspec.Struct, frozen=True):
    """The state of a join at the checkpoint's offsets, for ``joiner status`` and metrics. Not used by a restore.

    ``frontier_*``: the lowest and the highest frontier among the keys in use on that side, in ns, or None if none of
    these keys has a frontier.
    """

    held_left: int
    held_right: int
    keys: int
    frontier_left: tuple[int, int] | None = None
    frontier_right: tuple[int, int] | None = None


class AlignSummary(msgspec.Struct, frozen=True):
    """The state of an align, like `JoinSummary` for a join.

    ``held``: the number of records held per stream: ``driver``, or ``grid`` with the number of its waiting ticks, and
    each column by name. ``frontiers``: the lowest and the highest frontier among the keys in use, in ns, by stream. A
    grid is left out, and so are streams in which none of these keys has a frontier.
    """

    held: dict[str, int]
    keys: int
    frontiers: dict[str, tuple[int, int]]


class FirstRecord(msgspec.Struct, frozen=True):
    """The identity of a transaction's first record in a result topic, and an offset at or before that record.

    This record stands for all records of the transaction in that partition: they become visible together or not at all.
    """

    identity: str
    start: int


Basis = tuple[dict[str, int], dict[str, str], str]


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a unit has consumed its input, and who owns the unit.

    ``offsets`` is the vector C: for each input topic, the offset of the next record to consume. ``start`` is the vector
    at which the application started this unit. ``topics`` are the ids of the input topics; a topic that is deleted and
    recreated gets a new id. ``fingerprint`` is the hash of ``semantics``, which is stored as well so that an error can
    name the setting that changed. ``counts`` are totals since ``start``. ``stopped``: whether the owner wrote this
    record during a clean shutdown, for ``joiner status``.

    ``written``: for each result topic, the first record of the last committed transaction that wrote to it, unless
    Kafka is known to have ended that transaction there. ``result_ends``: for each result topic, an offset at or before
    all output of the unit since ``start``. Older releases wrote neither.

    ``founded``: the vector up to which the unit of a replica was founded (see `ownership.foundation`): it has written
    nothing that was due there. Empty if it began at ``start``.

    ``noted_at``: in a note about dangling transactions (see `ownership.dangling`), an offset of the state log after
    everything that was there when its author claimed the unit. A later checkpoint is that of another claimant. -1 in
    checkpoints, and in notes of older releases.
    """

    format: int
    application: str
    unit: int
    run: str
    instance: str
    site: str = msgspec.field(name="placement")
    offsets: dict[str, int]
    start: dict[str, int]
    topics: dict[str, str]
    partitions: int
    fingerprint: str
    semantics: dict[str, Any]
    counts: dict[str, int]
    joins: dict[str, JoinSummary]
    stopped: bool = False
    written: dict[str, FirstRecord] = {}
    result_ends: dict[str, int] = {}
    aligns: dict[str, AlignSummary] = {}
    founded: dict[str, int] = {}
    noted_at: int = -1

    @property
    def basis(self) -> Basis:
        """What a unit's state depends on besides the consumed offsets. It changes only after a reset.

        It consists of the offsets at which the application started the unit, the input topic ids, and the fingerprint.
        """
        return self.start, self.topics, self.fingerprint

    @property
    def owner(self) -> str:
        """The owner, for messages to users."""
        if self.run == RESET_RUN:
            return "nobody since a reset"
        if (way := self.on_the_way) is not None:
            return f"nobody: on its way from {way.source} to {self.site}"
        return f"{self.site} {self.instance}"

    @property
    def on_the_way(self) -> OnTheWay | None:
        """The move for which the unit was released, or None if it was not released or has been claimed since."""
        kind, _, rest = self.run.partition(":")
        # A move id may contain colons, but a site name cannot.
        move, is_whole, source = rest.rpartition(":")
        return OnTheWay(move, source) if kind == _MOVING and is_whole else None


class Manifest(msgspec.Struct, frozen=True):
    """Describes a complete snapshot, taken at the vector C0 = ``offsets``. ``serial`` increases with each snapshot.

    ``result_ends``: for each result topic, an offset at or before all output of the unit since C0. Older releases did
    not write it.
    """

    format: int
    serial: int
    slot: int
    chunks: int
    length: int
    sha256: str
    offsets: dict[str, int]
    fingerprint: str
    result_ends: dict[str, int] = {}


_SEMANTICS_NAMES: Final = {"ahead_max_ns": "max_future_skew_ns", "progress": "watermark_scope"}
"""Maps setting names from the first release, which the semantics still use, to the current names."""


def semantic_differences(then: object, now: object, path: str = "") -> list[tuple[str, object, object]]:
    """Return the differences between two values of `JoinerSettings.semantics`: each setting's path, and both values.

    A setting missing from one of them has the value None there.
    """
    if not isinstance(then, dict) or not isinstance(now, dict):
        return [] if then == now else [(path, then, now)]
    return [
        difference
        for name in sorted(then.keys() | now.keys())
        for difference in semantic_differences(
            then.get(name), now.get(name), f"{path}.{_SEMANTICS_NAMES.get(name, name)}".lstrip(".")
        )
    ]


class _Format(msgspec.Struct):
    format: int


_encoder = msgspec.json.Encoder()
_format = msgspec.json.Decoder(_Format)
_progress = msgspec.json.Decoder(Checkpoint)
_manifest = msgspec.json.Decoder(Manifest)


def checkpoint_key(unit: int) -> str:
    """Return the key of the unit's checkpoint."""
    return f"{unit}/progress"


def dangling_key(unit: int) -> str:
    """Return the key in the state topic under which a unit's unresolved dangling transactions are noted."""
    return f"{unit}/unsettled"


def manifest_key(unit: int, slot: int) -> str:
    """Return the key of a slot's manifest."""
    return f"{unit}/{slot}/manifest"


def chunk_key(unit: int, slot: int, index: int) -> str:
    """Return the key of the chunk ``index`` in a slot."""
    return f"{unit}/{slot}/{index}"


def encode(record: Checkpoint | Manifest) -> bytes:
    """Encode a record as JSON."""
    return _encoder.encode(record)


def decode_format(value: bytes) -> int:
    """Decode only the format version of a record, because a newer format may differ in everything else."""
    return _format.decode(value).format


def decode_checkpoint(value: bytes) -> Checkpoint:
    """Decode a checkpoint. Raises msgspec.DecodeError if it is malformed."""
    return _progress.decode(value)


def decode_manifest(value: bytes) -> Manifest:
    """Decode a manifest. Raises msgspec.DecodeError if it is malformed."""
    return _manifest.decode(value)


_Versioned = TypeVar("_Versioned", Checkpoint, Manifest)


def decode_checked(unit: int, decode: Callable[[bytes], _Versioned], value: bytes) -> _Versioned:
    """Decode a record of the state topic. Raises `UnitStopped` if it is unreadable or in a newer format."""
    try:
        version = decode_format(value)
        if version > FORMAT_VERSION:
            message = (
                f"unit {unit}: the state topic was written by a newer release (format {version}); upgrade the joiner"
            )
            raise UnitStopped(message)
        return decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"unit {unit}: a record of the state topic cannot be read: {error}; did another program write it?"
        raise UnitStopped(message) from error


_SHOWN_MAX: Final = 5
"""Maximum number of missing chunks that an error lists."""


@dataclass(frozen=True)
class StateLog:
    """The last value of each key in a unit's partition of the state topic."""

    unit: int
    values: dict[str, bytes] = field(default_factory=dict)
    end: int = 0
    """The offset up to which the partition was read."""
    checkpoint_at: int = -1
    """The offset of the newest checkpoint, or -1 if there is none."""

    def checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None if the unit was never started.

        Raises `UnitStopped` if it is unreadable or in a newer format.
        """
        value = self.values.get(checkpoint_key(self.unit))
        return None if value is None else decode_checked(self.unit, decode_checkpoint, value)

    def dangling_note(self) -> Checkpoint | None:
        """Return the noted checkpoint up to which results may have been written, or None (see `ownership.dangling`).

        A note that does not count any more is left out. Raises `UnitStopped` if it is unreadable or in a newer format.
        """
        value = self.values.get(dangling_key(self.unit))
        note = None if value is None else decode_checked(self.unit, decode_checkpoint, value)
        return None if note is None or self.is_outdated(note) else note

    def is_outdated(self, note: Checkpoint) -> bool:
        """Return whether the unit has been claimed by somebody else since the author of a note claimed it.

        Whoever has done so would have removed the note if it had been there in time. So its author was fenced before it
        was written, and has done nothing else.
        """
        return 0 <= note.noted_at <= self.checkpoint_at

    def manifests(self) -> list[Manifest]:
        """Return the manifests, at most one per slot, newest first.

        Raises `UnitStopped` if one of them is unreadable or in a newer format.
        """
        values = (self.values.get(manifest_key(self.unit, slot)) for slot in range(SLOTS))
        found = [decode_checked(self.unit, decode_manifest, value) for value in values if value is not None]
        return sorted(found, key=lambda manifest: -manifest.serial)

    def without_newest_snapshot(self) -> StateLog:
        """Return this log without its newest snapshot, so that a replay starts from the previous one."""
        gone = {manifest_key(self.unit, manifest.slot) for manifest in self.manifests()[:1]}
        return replace(self, values={key: value for key, value in self.values.items() if key not in gone})

    def chunks_in(self, slot: int) -> int:
        """Return the number of chunks in a slot, including chunks that no manifest describes."""
        prefix = f"{self.unit}/{slot}/"
        return sum(key.startswith(prefix) and not key.endswith("/manifest") for key in self.values)

    def snapshot(self, manifest: Manifest, reset: str) -> bytes:
        """Return the bytes of a snapshot. Raises `UnitStopped` if a chunk is missing or altered.

        ``reset``: the command that resets the application, for that error.
        """
        keys = (chunk_key(self.unit, manifest.slot, index) for index in range(manifest.chunks))
        # Stop after a few, because a damaged manifest may claim any number of chunks.
        missing = list(islice((key for key in keys if key not in self.values), _SHOWN_MAX))
        whole = b"" if missing else self._joined(manifest)
        if missing or hashlib.sha256(whole).hexdigest() != manifest.sha256:
            fault = f"lacks {', '.join(missing)}" if missing else "does not match its checksum"
            message = (
                f"unit {self.unit}: snapshot {manifest.serial} in the state topic {fault}: "
                f"restore the topic, or start over with {reset}"
            )
            raise UnitStopped(message)
        return whole

    def _joined(self, manifest: Manifest) -> bytes:
        return b"".join(self.values[chunk_key(self.unit, manifest.slot, index)] for index in range(manifest.chunks))
