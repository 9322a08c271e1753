"""Executes a plan in a Spark worker: gets the unit's state, reads the offset range from Kafka, and joins the records.

A unit's state at given offsets is the same wherever it comes from, so the nearest source is used:

 1. The memory of this process, if it ran the unit's last batch.
 2. Spark's state store. Every batch writes to it, because another worker may run the unit's next batch.
 3. The newest snapshot in Kafka and a silent replay, as in every other runner.

A worker's copy of a unit is only a cache. It does no harm if the copy is lost or outdated.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pandas as pd
from confluent_kafka import Consumer, KafkaError, KafkaException
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from joiner.runtime.clock import Clock, SystemClock
from joiner.runtime.kafka.batches.gaps import GapVerifier
from joiner.runtime.kafka.batches.ranges import read_range
from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.clients import make_reader
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.transaction import OwnershipInDoubt
from joiner.runtime.model import UnitStopped
from joiner.runtime.ownership.restore import build_state
from joiner.runtime.ownership.retry_policy import cause_of
from joiner.runtime.runners.gc_tuning import tune_gc
from joiner.runtime.runners.spark.plans import Outcome, Plan, decode_plan, encode_outcome, pack
from joiner.runtime.task.function_failures import add_up
from joiner.runtime.task.unit import Unit

if TYPE_CHECKING:
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.decode import Messages

OUTPUT_SCHEMA: Final = "outcome binary"

_CHUNK_BYTES: Final = 256 * 1024
"""The size of the chunks in which a state is kept in Spark's store, which is slow with large values: writing 10 MB
takes 0.4 s in one piece and 8 ms in chunks."""

_FETCH_BYTES: Final = 4 * 1024 * 1024

_AT_ONCE: Final = 20_000
"""Number of messages to join at a time: few enough for their objects to fit into memory that is already allocated."""

_HELD_MAX: Final = 1_000_000
"""Maximum total number of records in the units that a worker process keeps between batches."""

_LOST: Final = {KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART}  # noqa: SLF001 - the public names


class _Left(NamedTuple):
    """A unit as this process left it after its last batch, and the offsets at which the unit was started."""

    start: dict[str, int]
    unit: Unit


@dataclass
class WorkerMemory:
    """What a worker process keeps between batches, because creating it anew would take longer than a small batch."""

    clock: Clock
    units: dict[tuple[str, int], _Left] = field(default_factory=dict)
    """Units by application and unit number, ordered from least to most recently used."""
    gaps: GapVerifier | None = None
    reader: Consumer | None = None
    """The consumer for the next read. It is None during a read, so that a new one is created if the read fails."""

    def keep(self, place: tuple[str, int], left: _Left) -> None:
        """Keep a unit in memory, in case this process also gets its next batch."""
        self.units[place] = left
        while len(self.units) > 1 and sum(one.unit.held() for one in self.units.values()) > _HELD_MAX:
            del self.units[next(iter(self.units))]

    def read(self, settings: JoinerSettings, plan: Plan) -> Iterator[tuple[dict[str, Messages], dict[str, int]]]:
        """Read a plan's range of the input in parts; see `read_range`."""
        if plan.begin == plan.end:
            return
        consumer, self.reader = self.reader or _make_reader(settings), None
        native, most = settings.application.native, settings.messages_max(_AT_ONCE)
        yield from read_range(consumer, self.clock, plan.unit, plan.begin, plan.end, most, native=native)
        self.reader = consumer

    def verifier(self, settings: JoinerSettings) -> GapVerifier:
        """Return this process's gap verifier, which is created on first use."""
        self.gaps = self.gaps or GapVerifier(settings, self.clock)
        return self.gaps


_MEMORY: Final = WorkerMemory(SystemClock())
"""The memory of this process."""


class UnitProcessor(StatefulProcessor):
    """Spark's operator; its grouping key is a unit."""

    def __init__(self, settings: JoinerSettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See `StatefulProcessor.init`. Spark calls this once for every task."""
        _prepare()
        self._copy = StateCopy(handle)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,  # noqa: ARG002 - Spark's signature
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803 - Spark's signature
    ) -> Iterator[pd.DataFrame]:
        """Execute the plan in each input row. Yields one outcome per row."""
        for frame in rows:
            for plan in frame["plan"]:
                outcome = execute(self._settings, decode_plan(bytes(plan)), self._copy, _MEMORY)
                yield pd.DataFrame({"outcome": [encode_outcome(outcome)]})


class StateCopy:
    """A copy of a unit's state in Spark's state store: its offsets, and its snapshot in chunks.

    The checksum is verified, because Spark may keep only part of a write that failed.
    """

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._head = handle.getValueState("head", "at binary, chunks int, checksum long")
        self._chunks = handle.getMapState("chunks", "at int", "part binary")

    def read(self, start: Mapping[str, int], offsets: Mapping[str, int]) -> bytes | None:
        """Return the snapshot taken at ``offsets`` for the unit started at ``start``, or None if there is none."""
        head = self._head.get()
        if head is None or msgspec.json.decode(head[0]) != [start, offsets]:
            return None
        parts = (self._chunks.getValue((at,)) for at in range(head[1]))
        data = b"".join(bytes(part[0]) for part in parts if part is not None)
        return data if zlib.crc32(data) == head[2] else None

    def write(self, start: Mapping[str, int], offsets: Mapping[str, int], data: bytes) -> None:
        """Replace the stored state with a snapshot taken at ``offsets`` for the unit started at ``start``."""
        before = self._head.get()
        count = -(-len(data) // _CHUNK_BYTES)
        for at in range(count):
            self._chunks.updateValue((at,), (data[at * _CHUNK_BYTES : (at + 1) * _CHUNK_BYTES],))
        for at in range(count, before[1] if before is not None else 0):
            self._chunks.removeKey((at,))
        self._head.update((msgspec.json.encode([start, offsets]), count, zlib.crc32(data)))


def execute(settings: JoinerSettings, plan: Plan, copy: StateCopy, memory: WorkerMemory) -> Outcome:
    """Execute a plan and return its outcome. Never raises, so that one unit's failure does not affect the others."""
    if not plan.end:
        return Outcome(plan)
    try:
        return _execute(settings, plan, copy, memory)
    except KafkaException as error:
        text = error.args[0].str()
        return Outcome(plan, lost=text) if error.args[0].code() in _LOST else Outcome(plan, failed=text)
    except OwnershipInDoubt:
        return Outcome(plan, lost="input was removed before it was joined")
    except Exception as error:  # noqa: BLE001 - no error may affect the other units
        return _failed(plan, error)


def _failed(plan: Plan, error: Exception) -> Outcome:
    what = f"unit {plan.unit}: a batch failed with {type(error).__name__}: {error}; none of it was written"
    if isinstance(error, UnitStopped):
        what = str(error)
    elif not cause_of(error).is_transient:
        what += ". Restart the joiner; if this happens again, please report it as a bug"
    return Outcome(plan, failed=what) if cause_of(error).is_transient else Outcome(plan, stopped=what)


def _execute(settings: JoinerSettings, plan: Plan, copy: StateCopy, memory: WorkerMemory) -> Outcome:
    spent = _Stopwatch(memory.clock)
    place = settings.application.name, plan.unit
    unit = _unit_at(settings, plan, copy, memory.clock, memory.units.pop(place, None))
    spent.note("state")
    found = Outcome(plan)
    appended_ms = Counter[int]()
    for batches, end in memory.read(settings, plan):
        spent.note("read")
        memory.verifier(settings).check(plan.unit, unit.offsets, batches)
        effects = unit.apply(batches, end, is_part=end != plan.end)
        spent.note("join")
        found.parts.append(pack(effects.messages(settings.topics)))
        found.records += effects.records
        found.pairs += effects.pairs
        appended_ms += effects.appended_ms
        add_up(found.failed_pairs, effects.failed_pairs)
        spent.note("pack")
    data = unit.snapshot()
    copy.write(plan.start, unit.offsets, data)
    spent.note("store")
    # Keep the unit only now that the batch has succeeded: after a failed batch, its state is useless.
    memory.keep(place, _Left(plan.start, unit))
    found.counts, found.leads = dict(unit.counts), unit.leads()
    found.joins, found.aligns = unit.join_summaries(), unit.align_summaries()
    found.held, found.held_bytes = unit.held(), unit.held_bytes()
    found.appended_ms = dict(appended_ms)
    found.snapshot = data if plan.snapshot else None
    found.spent_s = spent.seconds
    return found


def _unit_at(settings: JoinerSettings, plan: Plan, copy: StateCopy, clock: Clock, left: _Left | None) -> Unit:
    """Return the unit at the start of a plan. ``left``: the unit as this process left it after its last batch."""
    warm = left.unit if left is not None and left.start == plan.start else None
    if warm is not None and warm.offsets == plan.begin:
        return warm
    data = copy.read(plan.start, plan.begin)
    if data is not None:
        return Unit.restore(settings, plan.unit, data)
    with closing(Readers(settings, clock)) as readers:
        state = read_state(readers, plan.unit)
        checkpoint = state.checkpoint()
        if checkpoint is None:
            raise UnitStopped(
                f"unit {plan.unit}: {settings.state_topic} has no checkpoint for it: was the topic deleted?"
            )
        return build_state(msgspec.structs.replace(checkpoint, offsets=plan.begin), state, readers, warm)


def _make_reader(settings: JoinerSettings) -> Consumer:
    """Create a consumer that fetches large blocks, because every range begins with a new fetch."""
    return make_reader(settings.kafka, settings.application.name, fetch_message_max_bytes=_FETCH_BYTES)


class _Stopwatch:
    """Measures how long each step of a batch takes."""

    def __init__(self, clock: Clock) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._at_s = clock.monotonic_s()

    def note(self, what: str) -> None:
        """Add the time since the last note to ``what``."""
        now_s = self._clock.monotonic_s()
        self.seconds[what] = self.seconds.get(what, 0.0) + now_s - self._at_s
        self._at_s = now_s


_prepare = functools.cache(tune_gc)
"""Tunes the collector once in each process."""
