"""The messages between driver and workers: plans and outcomes, one small row per unit and batch in each direction.

Input records do not pass through Spark. Kafka has already partitioned them by unit, which is all that a shuffle would
do. So Spark shuffles offset ranges, and the worker that gets a range reads its records from Kafka.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from broker.wire.columns import StringColumn
from joiner.runtime.model import AlignSummary, JoinSummary
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.effects import Outgoing
from joiner.runtime.task.flow_control import Lead
from joiner.runtime.task.function_failures import Failures

Place = TypeVar("Place", bound=Hashable)

_CODEC: Final = "lz4"
_LENGTH_BYTES: Final = 8


class Plan(msgspec.Struct, frozen=True):
    """A range of a unit's input: from the offsets ``begin`` up to ``end``, both by topic.

    ``start``: the offsets at which the unit was started. Its state depends on them, and a reset changes them.
    ``claim``: the number of the driver's claim, to recognise plans from before the unit was lost and claimed again.
    ``snapshot``: return the state at the end. A plan without offsets only keeps the worker alive.
    """

    unit: int
    claim: int
    start: dict[str, int]
    begin: dict[str, int]
    end: dict[str, int]
    snapshot: bool = False


class Outcome(msgspec.Struct):
    """The messages that a plan has to write, in parts (see `pack`), and the unit's figures at the end of the plan.

    ``stopped``: why the unit cannot continue. ``failed``: why the plan failed; it may be retried. ``lost``: the input
    no longer exists, so another runner may have claimed the unit. In all three cases the other members are empty, and
    the unit's state is the one before the plan.
    """

    plan: Plan
    parts: list[bytes] = msgspec.field(default_factory=list)
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    joins: dict[str, JoinSummary] = msgspec.field(default_factory=dict)
    aligns: dict[str, AlignSummary] = msgspec.field(default_factory=dict)
    leads: list[Lead] = msgspec.field(default_factory=list)
    records: int = 0
    pairs: int = 0
    held: int = 0
    held_bytes: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    appended_ms: dict[int, int] = msgspec.field(default_factory=dict)
    failed_pairs: dict[str, Failures] = msgspec.field(default_factory=dict)
    snapshot: bytes | None = None
    spent_s: dict[str, float] = msgspec.field(default_factory=dict)
    stopped: str = ""
    failed: str = ""
    lost: str = ""


class Turn(msgspec.Struct, frozen=True):
    """An offset of the source: the number of the batch that ends at it, and the plans of that batch."""

    number: int = 0
    plans: list[Plan] = msgspec.field(default_factory=list)


def share_out(waiting: Mapping[Place, int], room: int) -> dict[Place, int]:
    """Return how many of the ``waiting`` records of each place to read in a batch of about ``room`` records.

    Places with few records are read to the end, so that they need not wait for others. The rest of the room is shared
    in proportion, so that all workers finish at the same time and no core is idle.
    """
    found: dict[Place, int] = {}
    by_length = sorted(waiting.items(), key=lambda item: item[1])
    for at, (place, count) in enumerate(by_length):
        if count > room // (len(by_length) - at):
            rest = sum(count for _, count in by_length[at:])
            return found | {place: max(1, room * count // rest) for place, count in by_length[at:]}
        found[place] = count
        room -= count
    return found


_outcome = msgspec.msgpack.Decoder(Outcome)
_plan = msgspec.msgpack.Decoder(Plan)
_Packed = tuple[bytes, bytes]
"""A `StringColumn`: the bytes of its strings, and their lengths as int32."""

_packed = msgspec.msgpack.Decoder(dict[str, tuple[_Packed | None, _Packed]])


def encode_plan(plan: Plan) -> bytes:
    """Return a plan as bytes, as Spark passes it to a worker."""
    return msgspec.msgpack.encode(plan)


def decode_plan(data: bytes) -> Plan:
    """Decode the output of `encode_plan`."""
    return _plan.decode(data)


def encode_outcome(outcome: Outcome) -> bytes:
    """Return an outcome as bytes, as Spark passes it to the driver."""
    return msgspec.msgpack.encode(outcome)


def decode_outcome(data: memoryview) -> Outcome:
    """Decode the output of `encode_outcome`."""
    return _outcome.decode(data)


def pack(messages: Outgoing) -> bytes:
    """Encode messages for transfer through Spark, compressed because they are copied about six times."""
    columns = {
        topic: (None if batch.keys is None else _pack(batch.keys), _pack(batch.values))
        for topic, batch in messages.items()
    }
    plain = msgspec.msgpack.encode(columns)
    packed: bytes = pa.compress(plain, codec=_CODEC, asbytes=True)
    return len(plain).to_bytes(_LENGTH_BYTES, "big") + packed


def unpack(parts: Iterable[bytes]) -> Outgoing:
    """Return the messages of packed parts, in order."""
    found: dict[str, list[Batch]] = {}
    for part in parts:
        data = memoryview(part)
        length = int.from_bytes(data[:_LENGTH_BYTES], "big")
        columns = _packed.decode(pa.decompress(data[_LENGTH_BYTES:], length, codec=_CODEC))
        for topic, (keys, values) in columns.items():
            found.setdefault(topic, []).append(Batch(None if keys is None else _unpack(keys), _unpack(values)))
    return {topic: Batch.concat(batches) for topic, batches in found.items()}


def _pack(column: StringColumn) -> _Packed:
    return column.joined(), column.lengths().astype(np.int32).tobytes()


def _unpack(packed: _Packed) -> StringColumn:
    data, lengths = packed
    return StringColumn.of_lengths(data, np.frombuffer(lengths, dtype=np.int32).astype(np.int64))
