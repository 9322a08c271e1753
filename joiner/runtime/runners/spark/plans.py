"""The messages between the driver and the workers: for each unit and batch, a plan goes out and an outcome comes back.

Input records do not pass through Spark. A shuffle would only partition them by unit, and Kafka has already done that.
So Spark shuffles offset ranges instead, and the worker that receives a range reads its records from Kafka.
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
    """A range of a unit's input to join: from the offsets ``begin`` up to ``end``, both by topic.

    ``start``: the offsets at which the unit was started. Its state depends on them, and a reset changes them.
    ``claim``: the driver's number for its claim of the unit, to recognise plans that it made before it lost the unit.
    ``snapshot``: whether the outcome must include the state at the end. A plan without offsets only keeps the worker
    alive.
    """

    unit: int
    claim: int
    start: dict[str, int]
    begin: dict[str, int]
    end: dict[str, int]
    snapshot: bool = False


class Outcome(msgspec.Struct):
    """The messages that a plan produced, in parts (see `pack`), and figures about the unit at the end of the plan.

    If the plan could not be executed, one of the following fields is set, all other fields are empty, and the unit's
    state is unchanged: ``stopped``: why the unit cannot continue. ``failed``: why the plan failed; it may be retried.
    ``lost``: why the input cannot be read any more, in which case another runner may have claimed the unit.
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
    """An offset in the Spark source: the number of the batch that ends there, and the plans for that batch."""

    number: int = 0
    plans: list[Plan] = msgspec.field(default_factory=list)


def share_out(waiting: Mapping[Place, int], room: int) -> dict[Place, int]:
    """Divide a batch of about ``room`` records among places, each of which is one topic of one unit.

    ``waiting``: the number of records available at each place. A place with few records is read to its end, so that it
    does not lag behind. The remaining room is divided among the other places in proportion to their records, so that
    all workers finish at the same time and no core is idle.
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
"""An encoded `StringColumn`: the bytes of all its strings, and their lengths as int32."""

_packed = msgspec.msgpack.Decoder(dict[str, tuple[_Packed | None, _Packed]])


def encode_plan(plan: Plan) -> bytes:
    """Encode a plan as the bytes that Spark passes to a worker."""
    return msgspec.msgpack.encode(plan)


def decode_plan(data: bytes) -> Plan:
    """Decode the output of `encode_plan`."""
    return _plan.decode(data)


def encode_outcome(outcome: Outcome) -> bytes:
    """Encode an outcome as the bytes that Spark passes to the driver."""
    return msgspec.msgpack.encode(outcome)


def decode_outcome(data: memoryview) -> Outcome:
    """Decode the output of `encode_outcome`."""
    return _outcome.decode(data)


def pack(messages: Outgoing) -> bytes:
    """Encode messages for transfer through Spark. They are compressed, because Spark copies them about six times."""
    columns = {
        topic: (None if batch.keys is None else _pack(batch.keys), _pack(batch.values))
        for topic, batch in messages.items()
    }
    plain = msgspec.msgpack.encode(columns)
    packed: bytes = pa.compress(plain, codec=_CODEC, asbytes=True)
    return len(plain).to_bytes(_LENGTH_BYTES, "big") + packed


def unpack(parts: Iterable[bytes]) -> Outgoing:
    """Decode messages that were encoded in several parts with `pack`. Their order is preserved."""
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
