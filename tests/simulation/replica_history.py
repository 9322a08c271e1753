"""Histories of an application with two replicas, which are founded, die, lag, are reset and return in any order.

Each replica is judged by the project's checker, as any application is. In addition, its start records must hold: what
precedes one in its partition includes all output that is due at its vector. All replicas write the same output, except
that a replica has none from before it was founded. A reader that merges them gets each output once.
"""

from __future__ import annotations

import io
import math
import random
from contextlib import redirect_stdout
from typing import Any, Final, TypeGuard

from broker.wire.start_records import read_start
from joiner.cli import reset as resetting
from joiner.runtime.kafka.pending_markers import holds_results
from joiner.runtime.model import RESET_RUN
from joiner.runtime.settings import JoinerSettings, replica_settings
from tests.simulation.bugs import changed
from tests.simulation.feed import Step, make_feed, make_settings
from tests.simulation.memory_kafka import MemoryKafka
from tests.simulation.memory_log import Transaction
from tests.simulation.outcome import Outcome
from tests.simulation.replica_incidents import ReplicaIncidents
from tests.simulation.replica_verdict import written, wrong_starts, wrongly_merged
from tests.simulation.stage import CHUNK_BYTES, facts_of, on_stage
from tests.simulation.temper import CALM, TEMPERS
from tests.simulation.verdict import all_progress, judge, stable_ends
from tests.simulation.world import SimulatedProcess, Slot, World, ended_well

REPLICAS: Final = 2
_RECORDS: Final = 40
_LATE: Final = 0.5
"""How likely replica 1 is added after a part of the input."""
_TROUBLE_STEPS_MAX: Final = 1_200
_HEAL_STEPS_MAX: Final = 25_000
_LOOK_EVERY: Final = 20
_FEED_AGAIN: Final = 500
"""More input is first written after this many steps. Without it, an owner does not detect that it has lost its unit."""
_FORGETS_MAX: Final = 3
_RESET_AGAIN_S: Final = 2.0


def play(seed: int) -> Outcome:
    """Run the history of a seed."""
    history = ReplicaHistory(seed)
    # The topics in memory have no settings that could be checked.
    topics = changed(resetting, "ensure_topics", lambda *_given: facts_of(history.world.kafka))
    with on_stage(history.world), topics, history.incidents.watching_beginnings():
        history.world.play()
    return Outcome(seed, history.difference, history.world.counts, history.world.timeline)


class _Reset:
    """The command ``joiner reset`` for a replica. See `Program`."""

    def __init__(self, world: World, settings: JoinerSettings) -> None:
        self._world, self._settings = world, settings

    def run(self) -> int:
        """See `Program`."""
        with redirect_stdout(io.StringIO()):
            return resetting.reset(self._settings, self._world.clock, confirmed=True)

    def stop(self) -> None:
        """See `Program`. It ends by itself."""


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
        self._is_late = plan.random() < _LATE
        """Whether replica 1 is added after a part of the input, when replica 0 has snapshots."""
        if self._is_late:
            often = application.model_copy(update={"snapshot_records": plan.choice([1, 3, 6])})
            settings = settings.model_copy(update={"application": often})
        self.replicas = [replica_settings(settings, replica) for replica in range(REPLICAS)]
        self._feed = make_feed(plan, settings, plan.randint(_RECORDS // 3, _RECORDS))
        self._fed = 0
        self._sources: dict[int, Transaction] = {}
        self._rate = plan.choice([0.05, 0.15, 0.4])
        self._faults_max = plan.randint(1, 12)
        self._resets, forgets = plan.choice([(0, 0), (1, 0), (2, 0), (0, _FORGETS_MAX), (1, 2)])
        self.incidents = ReplicaIncidents(self.world, self.replicas, plan, forgets)
        self._reset: SimulatedProcess | None = None
        self._is_resetting, self._reset_s = False, 0.0
        """Whether replica 1 must be reset before its processes start again, and when to try."""
        self.world.faults.temper = self._trouble = plan.choice(TEMPERS)
        self._act = self._begin
        self._act_from = 0
        self._feed_again_at = _FEED_AGAIN
        self._make_topics()
        now_s = self.world.clock_s
        names = [(0, "a"), (0, "b"), (1, "c"), (1, "d")]
        self._slots = [Slot(self._named(*name), now_s + plan.choice([0, 0, 1, 5, 20])) for name in names]
        self._added_at = plan.randrange(1, len(self._feed)) if self._is_late else 0
        """After how many steps of the feed replica 1 is added."""
        if self._is_late:
            for slot in self._slots_of(1):
                slot.start_s = math.inf

    def _named(self, replica: int, name: str) -> JoinerSettings:
        settings = self.replicas[replica]
        application = settings.application.model_copy(update={"instance": name})
        return settings.model_copy(update={"application": application})

    def _slots_of(self, replica: int) -> list[Slot]:
        return [slot for slot in self._slots if slot.settings.application.replica == replica]

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
        if self._is_late and self._is_replica_due():
            self._is_late = False
            for slot in self._slots_of(1):
                slot.start_s = self.world.clock_s
        for slot in self._slots:
            is_held_back = self._is_resetting and slot.settings.application.replica
            if slot.process is None and slot.start_s <= self.world.clock_s and not is_held_back:
                slot.process = self.world.start(slot.settings)
        if self._is_resetting and self._reset is None and self._reset_s <= self.world.clock_s:
            self._start_reset()
        self._act()

    def _is_replica_due(self) -> bool:
        """Return whether replica 0 has a state on which replica 1, which is added late, can be founded."""
        if self._act == self._heal:
            return True
        found = all_progress(self.world.kafka, self.replicas[0]) if self._fed >= self._added_at else {}
        return any(one.offsets != one.start for one in found.values())

    def _start_reset(self) -> None:
        """Reset replica 1, once its processes are gone."""
        if not any(slot.process for slot in self._slots_of(1)):
            world = self.world
            self._reset = world.start_program("reset", world.run_name("reset"), _Reset(world, self.replicas[1]))

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        self.world.note("%s ended: %s", process.run, repr(status))
        if not ended_well(status):
            self._differ(f"{process.run} ended with {status!r}")
        if process is self._reset:
            self._reset, self._reset_s = None, self.world.clock_s + _RESET_AGAIN_S
            if status == 0:
                self._is_resetting = False
                self.world.counts["reset"] += 1
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
        self.incidents.step(is_resetting=self._is_resetting)
        if self._fed < len(self._feed) and draw.random() < self._rate:
            for _ in range(draw.choice([1, 1, 2, 6])):
                self._feed_one()
        if self._resets and not self._is_resetting and draw.random() < 0.005:
            self._resets -= 1
            self._is_resetting = True
            for slot in self._slots_of(1):
                if slot.process is not None:
                    slot.process.is_dead = True
        if draw.random() < self._trouble.stop and world.processes:
            draw.choice(world.processes).program.stop()
        if world.faults.count >= self._faults_max:
            world.faults.temper = CALM
        if world.steps > _TROUBLE_STEPS_MAX or (world.faults.temper is CALM and self._fed >= len(self._feed)):
            self._turn_to(self._heal)

    def _heal(self) -> None:
        """The second phase: no more faults are injected, and all input is consumed."""
        world, age = self.world, self.world.steps - self._act_from
        world.faults.temper, world.slow_claims_s = CALM, None
        world.wake_all()
        self.incidents.cease()
        while self._fed < len(self._feed):
            self._feed_one()
        if age % _LOOK_EVERY == 0 and age and self._is_through():
            self._judge()
            world.end()
        elif age > self._feed_again_at:
            # Each time later, so that a unit that writes a large snapshot after each record can catch up.
            self._feed_again_at += age
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
        if self._is_resetting:
            return False
        for settings in self.replicas:
            found = all_progress(kafka, settings)
            for unit in range(settings.topics.partitions):
                checkpoint = found.get(unit)
                if checkpoint is None or checkpoint.run == RESET_RUN:
                    return False
                if checkpoint.offsets != stable_ends(kafka, settings, unit):
                    return False
        is_open = any(identity.transaction is not None for identity in kafka.identities.values())
        return not is_open and all(log.stable_end == log.end for _, _, log in kafka.logs())

    def _judge(self) -> None:
        kafka, has_forgotten = self.world.kafka, bool(self.world.counts["markers forgotten"])
        for settings in self.replicas:
            difference, findings = judge(kafka, settings)
            is_exact = not has_forgotten
            difference = difference or wrong_starts(kafka, settings, self._draw, self.world.counts, is_exact=is_exact)
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
        if wrong := wrongly_merged(kafka, self.replicas, self._draw):
            self._differ(wrong)
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
    """Return what replicas have written to a topic, except for start records, watermarks and Arrow messages."""
    units = range(len(kafka.topics[topic].logs))
    values = (entry.value for unit in units for entry in written(kafka, topic, unit))
    return {value for value in values if _is_alike(value)}


def _is_alike(value: bytes | None) -> TypeGuard[bytes]:
    """Return whether all replicas write a message in the same form."""
    return value is not None and not holds_results(value) and read_start(value) is None and b'"mark"' not in value
