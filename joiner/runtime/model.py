"""Types that cross packages: `UnitStopped`, and the records of the state topic ``<application>.state``.

One partition a unit, compacted, written under the unit's ``transactional.id``. Keys:

    <unit>/progress           `Checkpoint`, in every transaction of the unit; what it says counts
    <unit>/<slot>/<i>         chunk i of the snapshot in that slot: raw bytes
    <unit>/<slot>/manifest    `Manifest` of that snapshot, written last
    <unit>/unsettled          `Checkpoint` up to which results may be there: the only record outside a transaction,
                              where Kafka has forgotten to end one (see `dangling`); removed by the next claim

Two slots alternate, so that a complete snapshot is there while the next is written. A snapshot and its manifest
are one transaction. Surplus chunks of a slot are tombstoned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec


class UnitStopped(Exception):
    """The unit cannot go on; the text says what happened and what to do. Nothing of it was committed."""


FORMAT_VERSION: Final = 1
"""Of the records here; a reader refuses a higher one."""

SLOTS: Final = 2

WATERMARK_COUNT: Final = "marks"
"""The name of the watermarks that were read among the counts of a checkpoint."""

CHUNK_BYTES_MAX: Final = 512 * 1024
"""Bytes of a snapshot chunk: well below Kafka's default limit of 1 MiB a message."""


RESET_RUN: Final = "reset"
"""The run that a reset writes: nobody runs the unit, and every owner there was has lost it."""


_MOVING: Final = "moving"


class OnTheWay(NamedTuple):
    """A unit that is nobody's: released by the site ``source`` for a move, and not claimed yet."""

    move: str
    source: str

    def run(self) -> str:
        """The run that the source's last checkpoint names, so that nobody's claim is a restart's by mistake."""
        return f"{_MOVING}:{self.move}:{self.source}"


class JoinSummary(msgspec.Struct, frozen=True):
    """What a join holds at the checkpoint's offsets: for people and ``joiner status``, not for recovery.

    ``frontier_*`` are the lowest and the highest frontier of any key of that side, in ns; None: nothing came yet.
    """

    held_left: int
    held_right: int
    keys: int
    frontier_left: tuple[int, int] | None = None
    frontier_right: tuple[int, int] | None = None


class FirstRecord(msgspec.Struct, frozen=True):
    """The first record of a transaction in a result topic: what it is, and an offset at or before it.

    A transaction's records in a partition are visible together, or not at all.
    """

    identity: str
    start: int


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a unit has come, and who owns it.

    ``offsets`` is the vector C: by input topic, the offset of the next record to consume. ``start`` is the
    vector at which the application began with this unit. ``topics`` are the input topics' ids, which change when
    a topic is deleted and made anew. ``semantics`` is what ``fingerprint`` is the hash of, kept so that an error
    can name the setting that changed. ``counts`` are running totals since ``start``. ``stopped``: the owner has ended
    in good order with this record; for ``joiner status``.

    ``written``: by result topic, the last transaction that was committed with records there, this one or an earlier
    one, unless it is known that Kafka has ended it in that topic. ``result_ends``: offsets of the result topics behind
    which everything lies that the unit has brought forth since ``start``. Older releases wrote neither.
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

    @property
    def owner(self) -> str:
        """Who runs the unit, for people."""
        if self.run == RESET_RUN:
            return "nobody since a reset"
        if (way := self.on_the_way) is not None:
            return f"nobody: on its way from {way.source} to {self.site}"
        return f"{self.site} {self.instance}"

    @property
    def on_the_way(self) -> OnTheWay | None:
        """Which move has released the unit, while nobody has claimed it since."""
        kind, _, rest = self.run.partition(":")
        # Whoever gives the order names the move, with colons perhaps; a site has none.
        move, is_whole, source = rest.rpartition(":")
        return OnTheWay(move, source) if kind == _MOVING and is_whole else None


class Manifest(msgspec.Struct, frozen=True):
    """A complete snapshot: ``serial`` rises with each one; ``offsets`` is the vector C0 it was taken at.

    ``result_ends``: offsets of the result topics behind which everything lies that was brought forth since. Older
    releases did not write them.
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


class _Format(msgspec.Struct):
    format: int


_encoder = msgspec.json.Encoder()
_format = msgspec.json.Decoder(_Format)
_progress = msgspec.json.Decoder(Checkpoint)
_manifest = msgspec.json.Decoder(Manifest)


def checkpoint_key(unit: int) -> str:
    """The key of the unit's checkpoint."""
    return f"{unit}/progress"


def dangling_key(unit: int) -> str:
    """The key of the note that transactions of the unit have to be settled."""
    return f"{unit}/unsettled"


def manifest_key(unit: int, slot: int) -> str:
    """The key of the manifest of a slot."""
    return f"{unit}/{slot}/manifest"


def chunk_key(unit: int, slot: int, index: int) -> str:
    """The key of a chunk of a slot."""
    return f"{unit}/{slot}/{index}"


def encode(record: Checkpoint | Manifest) -> bytes:
    """The JSON bytes of a record."""
    return _encoder.encode(record)


def decode_format(value: bytes) -> int:
    """The version of a record, read before the rest, which a newer release may have changed."""
    return _format.decode(value).format


def decode_checkpoint(value: bytes) -> Checkpoint:
    """A checkpoint. Raises msgspec.DecodeError where it is none."""
    return _progress.decode(value)


def decode_manifest(value: bytes) -> Manifest:
    """A manifest. Raises msgspec.DecodeError where it is none."""
    return _manifest.decode(value)


_Versioned = TypeVar("_Versioned", Checkpoint, Manifest)


def decode_checked(unit: int, decode: Callable[[bytes], _Versioned], value: bytes) -> _Versioned:
    """A record of the state topic. Raises `UnitStopped` where it cannot be read, or is of a newer release."""
    try:
        version = decode_format(value)
        if version > FORMAT_VERSION:
            message = f"unit {unit}: the state topic was written by a newer release (format {version}); run that one"
            raise UnitStopped(message)
        return decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"unit {unit}: a record of the state topic cannot be read: {error}; is it written by another program?"
        raise UnitStopped(message) from error


_SHOWN_MAX: Final = 5
"""Missing chunks that are named."""


@dataclass(frozen=True)
class StateLog:
    """What a unit's partition of the state topic holds: the last value of each key."""

    unit: int
    values: dict[str, bytes] = field(default_factory=dict)
    end: int = 0
    """The offset up to which it was read."""
    checkpoint_at: int = -1
    """The offset of the newest checkpoint; -1 where there is none."""

    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint; None where the unit was never begun."""
        value = self.values.get(checkpoint_key(self.unit))
        return None if value is None else decode_checked(self.unit, decode_checkpoint, value)

    def dangling_note(self) -> Checkpoint | None:
        """Up to where results may be there already; None where nothing is to be settled (see `dangling`)."""
        value = self.values.get(dangling_key(self.unit))
        return None if value is None else decode_checked(self.unit, decode_checkpoint, value)

    def manifests(self) -> list[Manifest]:
        """The manifests of both slots, the newest first."""
        values = (self.values.get(manifest_key(self.unit, slot)) for slot in range(SLOTS))
        found = [decode_checked(self.unit, decode_manifest, value) for value in values if value is not None]
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
