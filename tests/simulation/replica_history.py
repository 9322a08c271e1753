"""Histories of an application with two replicas, which are founded, die, lag and return in any order.

Each replica is judged by the project's checker, as any application is. In addition, its start records must hold: what
precedes one in its partition includes all output that is due at its vector. And all replicas write the same output,
except that a replica has none from before it was founded.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker.wire.start_records import read_start
from joiner.check.found.evidence import Message, RecordedEvidence
from joiner.check.verify import comparison
from joiner.check.verify.outputs import verify
from joiner.check.verify.rows import ROWS
from joiner.runtime.kafka.pending_markers import holds_results
from joiner.runtime.model import RESET_RUN, checkpoint_key, decode_checkpoint
from joiner.runtime.settings import JoinerSettings, replica_settings
from tests.simulation.feed import Step, make_feed, make_settings
from tests.simulation.memory_kafka import MemoryKafka
from tests.simulation.memory_log import Entry, Transaction
from tests.simulation.outcome import Outcome
from tests.simulation.stage import CHUNK_BYTES, on_stage
from tests.simulation.temper import CALM, TEMPERS
from tests.simulation.verdict import all_progress, judge, stable_ends
from tests.simulation.world import SimulatedProcess, World, ended_well

REPLICAS: Final = 2
_RECORDS: Final = 40
_TROUBLE_STEPS_MAX: Final = 1_200
_HEAL_STEPS_MAX: Final = 25_000
_LOOK_EVERY: Final = 20
_FEED_AGAIN: Final = 500
"""More input is written after this many steps. Without it, an owner does not detect that it has lost its unit."""
_FORGETS_MAX: Final = 3
_KINDS: Final = {
    "out": {comparison.RESULTS, ROWS},
    "late": {comparison.LATE},
    "unmatched": {comparison.UNMATCHED},
    "rejected": {comparison.REJECTED, comparison.FAILED, comparison.FAILED_ROWS},
}
"""The kinds of output in each output topic, in the checker's words."""


def play(seed: int) -> Outcome:
    """Run the history of a seed."""
    history = ReplicaHistory(seed)
    with on_stage(history.world):
        history.world.play()
    return Outcome(seed, history.difference, history.world.counts, history.world.timeline)


@dataclass
class _Slot:
    """An instance of a replica, with the process that runs it now or the time at which the next one is started."""

    settings: JoinerSettings
    start_s: float
    process: SimulatedProcess | None = None


class ReplicaHistory:
    """The `Director` of a history with two replicas."""

    def __init__(self, seed: int) -> None:
        plan = random.Random(f"replicas {seed}")
        self.world = World(seed)
        self.world.director = self
        self.world.snapshot_bytes_max = plan.choice([10**9, 10**9, 3 * CHUNK_BYTES])
        self.world.slow_claims_s = plan.choice([None, None, (0.5, 3.0)])
        self.difference = ""
        self._draw = self.world.draw
        settings = make_settings(plan)
        application = settings.application.model_copy(update={"replicas": REPLICAS})
        settings = settings.model_copy(update={"application": application})
        self.replicas = [replica_settings(settings, replica) for replica in range(REPLICAS)]
        self._feed = make_feed(plan, settings, plan.randint(_RECORDS // 3, _RECORDS))
        self._fed = 0
        self._sources: dict[int, Transaction] = {}
        self._rate = plan.choice([0.05, 0.15, 0.4])
        self._faults_max = plan.randint(1, 12)
        self._forgets = plan.choice([0, 0, 0, _FORGETS_MAX])
        self.world.faults.temper = self._trouble = plan.choice(TEMPERS)
        self._act = self._begin
        self._act_from = 0
        self._make_topics()
        now_s = self.world.clock_s
        names = [(0, "a"), (0, "b"), (1, "c"), (1, "d")]
        self._slots = [_Slot(self._named(*name), now_s + plan.choice([0, 0, 1, 5, 20])) for name in names]

    def _named(self, replica: int, name: str) -> JoinerSettings:
        settings = self.replicas[replica]
        application = settings.application.model_copy(update={"instance": name})
        return settings.model_copy(update={"application": application})

    def _make_topics(self) -> None:
        kafka, partitions = self.world.kafka, self.replicas[0].topics.partitions
        for name in self.replicas[0].input_topics:
            kafka.create_topic(name, partitions)
        for settings in self.replicas:
            topics = settings.topics
            for name in (topics.out, topics.late, topics.rejected, topics.unmatched, settings.state_topic):
                kafka.create_topic(name, partitions)
            kafka.create_topic(settings.control_topic, 1)

    # The methods of `Director`

    def step(self) -> None:
        """See `Director`."""
        for slot in self._slots:
            if slot.process is None and slot.start_s <= self.world.clock_s:
                slot.process = self.world.start(slot.settings)
        self._act()

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        self.world.note("%s ended: %s", process.run, repr(status))
        if not ended_well(status):
            self._differ(f"{process.run} ended with {status!r}")
        for slot in self._slots:
            if slot.process is process:
                wait_s = self._draw.choice([0.1, 2.0, 20.0]) if self._act == self._begin else 0.1
                slot.process, slot.start_s = None, self.world.clock_s + wait_s

    def complain(self, text: str) -> None:
        """See `Director`. A unit may fail here only because another process owns it."""
        if "now owned by process" not in text:
            self._differ(f"set aside: {text}")

    def _begin(self) -> None:
        """The first phase, with all faults."""
        draw, world = self._draw, self.world
        if self._fed < len(self._feed) and draw.random() < self._rate:
            for _ in range(draw.choice([1, 1, 2, 6])):
                self._feed_one()
        if self._forgets and draw.random() < 0.01:
            self._forgets -= 1
            share = draw.choice([1.0, 0.5, 0.5])
            world.kafka.forgets = lambda _log: draw.random() < share
            world.counts["markers forgotten"] += 1
        if draw.random() < self._trouble.stop and world.processes:
            draw.choice(world.processes).joiner.stop()
        if world.faults.count >= self._faults_max:
            world.faults.temper = CALM
        if world.steps > _TROUBLE_STEPS_MAX or (world.faults.temper is CALM and self._fed >= len(self._feed)):
            self._turn_to(self._heal)

    def _heal(self) -> None:
        """The second phase: no more faults are injected, and all input is consumed."""
        world, age = self.world, self.world.steps - self._act_from
        world.faults.temper, world.slow_claims_s, world.kafka.forgets = CALM, None, None
        world.wake_all()
        while self._fed < len(self._feed):
            self._feed_one()
        if age % _LOOK_EVERY == 0 and age and self._is_through():
            self._judge()
            world.end()
        elif age % _FEED_AGAIN == _LOOK_EVERY:
            for topic in self.replicas[0].input_topics:
                for unit in range(self.replicas[0].topics.partitions):
                    world.kafka.append(topic, unit, None, b"more input")
        elif age > _HEAL_STEPS_MAX:
            self._differ(f"not through: {[all_progress(world.kafka, settings) for settings in self.replicas]}")

    def _turn_to(self, act: Any) -> None:
        self._act, self._act_from = act, self.world.steps
        self.world.note("now: %s", act.__name__)

    def _feed_one(self) -> None:
        if self._fed >= len(self._feed):
            return
        step: Step = self._feed[self._fed]
        self._fed += 1
        kafka, within = self.world.kafka, None
        if step.within >= 0:
            within = self._sources.setdefault(step.within, kafka.begin_source())
        if step.ends_as and within is not None:
            kafka.end_source(within, step.ends_as)
        else:
            kafka.append(step.topic, step.unit, step.key, step.value, within)

    # Invariants

    def _is_through(self) -> bool:
        """Return whether both replicas have consumed all input, and no transaction is open."""
        kafka = self.world.kafka
        for settings in self.replicas:
            found = all_progress(kafka, settings)
            for unit in range(settings.topics.partitions):
                checkpoint = found.get(unit)
                if checkpoint is None or checkpoint.offsets != stable_ends(kafka, settings, unit):
                    return False
        is_open = any(identity.transaction is not None for identity in kafka.identities.values())
        return not is_open and all(log.stable_end == log.end for _, _, log in kafka.logs())

    def _judge(self) -> None:
        kafka, has_forgotten = self.world.kafka, bool(self.world.counts["markers forgotten"])
        for settings in self.replicas:
            difference, findings = judge(kafka, settings)
            difference = difference or wrong_starts(kafka, settings, is_exact=not has_forgotten)
            if difference:
                self._differ(f"{settings.application.name}:\n{difference}")
            elif findings is not None:
                self.world.counts[f"outputs of {settings.application.name}"] += findings.total.found
        if self.difference:
            return
        first, second = (all_progress(kafka, settings) for settings in self.replicas)
        self.world.counts["founded on a snapshot"] += sum(bool(one.founded) for one in second.values())
        if {unit: one.start for unit, one in first.items()} != {unit: one.start for unit, one in second.items()}:
            self._differ("the replicas have not begun at the same vectors")
        for kind, topic in self.replicas[1].output_topics.items():
            ours, theirs = (_outputs(kafka, name) for name in (topic, self.replicas[0].output_topics[kind]))
            if more := ours - theirs:
                self._differ(f"replica 0 has not written to {kind}: {sorted(more)[:3]}")

    def _differ(self, text: str) -> None:
        if not self.difference:
            self.difference = text
            self.world.note("DIFFERENCE %s", text)
        self.world.end()


def _outputs(kafka: MemoryKafka, topic: str) -> set[bytes]:
    """Return what a topic holds, except for its dead letters of functions, which name it, and Arrow messages."""
    values = (entry.value for log in kafka.topics[topic].logs for entry in log.archive if entry.is_committed)
    return {value for value in values if _is_alike(value)}


def _is_alike(value: bytes | None) -> bool:
    """Return whether all replicas write a message in the same form."""
    if value is None or holds_results(value) or read_start(value) is not None or b'"mark"' in value:
        return False
    return b'"sha256"' not in value or b'"offset"' in value


def wrong_starts(kafka: MemoryKafka, settings: JoinerSettings, *, is_exact: bool) -> str:
    """Return what is wrong with the start records of a replica, or an empty string if nothing is.

    ``is_exact``: no transaction was ended wrongly, so each begins where the one before it ended.
    """
    for unit in range(settings.topics.partitions):
        for kind, topic in settings.output_topics.items():
            entries = [entry for entry in kafka.log(topic, unit).archive if entry.is_committed]
            if wrong := _not_first(entries) or _not_true(kafka, settings, unit, kind, entries):
                return f"{topic} [{unit}]: {wrong}"
        if is_exact and (wrong := _not_exact(kafka, settings, unit)):
            return f"unit {unit}: {wrong}"
    return ""


def _not_first(entries: list[Entry]) -> str:
    """Return the offset of a transaction's first message in a topic with output, if that is not a start record."""
    seen = set[int]()
    for entry in entries:
        if id(entry.transaction) not in seen and read_start(entry.value) is None and _is_output_needed(entry):
            return f"the transaction at {entry.offset} has no start record"
        seen.add(id(entry.transaction))
    return ""


def _is_output_needed(entry: Entry) -> bool:
    return entry.transaction is not None and entry.transaction.producer >= 0


def _not_true(kafka: MemoryKafka, settings: JoinerSettings, unit: int, kind: str, entries: list[Entry]) -> str:
    """Return a start record before which output is missing that is due at its vector."""
    topics = settings.topics
    inputs = [
        Message(name, unit, entry.offset, entry.time_ms, entry.key, entry.value)
        for name in settings.input_topics
        for entry in kafka.log(name, unit).archive
        if entry.is_committed
    ]
    topic = settings.output_topics[kind]
    checkpoint = all_progress(kafka, settings)[unit]
    before: list[Message] = []
    known = set[tuple[tuple[str, int], ...]]()
    for entry in entries:
        vector = read_start(entry.value)
        if vector is None:
            before.append(Message(topic, unit, entry.offset, entry.time_ms, entry.key, entry.value))
        elif (key := tuple(sorted(vector.items()))) not in known:
            # The output before its first occurrence is the smallest.
            known.add(key)
            at = msgspec.structs.replace(checkpoint, offsets=vector)
            findings = verify(settings, RecordedEvidence({unit: at}, [*inputs, *before], topics))
            missing = sum(tally.missing for (what, _), tally in findings.tallies.items() if what in _KINDS[kind])
            if missing:
                return f"{missing} outputs are missing before the start record at {entry.offset}, {vector}"
    return ""


def _not_exact(kafka: MemoryKafka, settings: JoinerSettings, unit: int) -> str:
    """Return a transaction that has no start record among the results, or one with another vector than it began at."""
    vectors: dict[int, Any] = {}
    for entry in kafka.log(settings.topics.out, unit).archive:
        if entry.is_committed and (vector := read_start(entry.value)) is not None:
            vectors.setdefault(id(entry.transaction), vector)
    last: dict[str, int] | None = None
    for entry in kafka.log(settings.state_topic, unit).archive:
        if entry.key != checkpoint_key(unit).encode() or not entry.is_committed or entry.value is None:
            continue
        checkpoint = decode_checkpoint(entry.value)
        if checkpoint.run != RESET_RUN:
            wanted, found = last or checkpoint.offsets, vectors.get(id(entry.transaction))
            if found != wanted:
                return f"the transaction of the checkpoint at {entry.offset} begins at {wanted}, and tells {found}"
        last = checkpoint.offsets
    return ""
