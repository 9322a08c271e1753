"""Runs the history of a seed in which processes repartition, and checks the copies.

First, processes start, work, die, freeze and restart while messages are written, offsets expire, topics are recreated
and retention deletes what was copied. Then fault injection stops, an operator follows the advice of the log if copying
has been refused, and everything must be copied within a fixed number of steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from joiner.runtime.repartition.progress import decode_progress
from tests.simulation.copy_incidents import CopyIncidents
from tests.simulation.copy_stage import Copier, make_copy_settings, on_copy_stage
from tests.simulation.copy_verdict import committed_offsets, fault_in_copies
from tests.simulation.memory_log import ABORTED, COMMITTED, Transaction
from tests.simulation.outcome import Outcome
from tests.simulation.temper import CALM, TEMPERS
from tests.simulation.world import SimulatedProcess, World, ended_well

MESSAGES_MAX: Final = 40
_TROUBLE_STEPS_MAX: Final = 1_200
_HEAL_STEPS_MAX: Final = 12_000
_LOOK_EVERY: Final = 20
_REFUSED: Final = "start over with `joiner reset`"
"""What a process says that refuses to copy, because a topic is another one."""
_NEVER_S: Final = 9e9
_THINGS: Final = ("m1", "m2", "m3", "m4", "m5")


def play(seed: int) -> Outcome:
    """Run the history of a seed."""
    history = CopyHistory(seed)
    with on_copy_stage(history.world):
        history.world.play()
    return Outcome(seed, history.difference, history.world.counts, history.world.timeline)


@dataclass
class _Slot:
    """An instance, with its process, or the time at which the next one is started."""

    name: str
    start_s: float
    process: SimulatedProcess | None = None


class CopyHistory:
    """The `Director` of a simulated history."""

    def __init__(self, seed: int) -> None:
        plan = random.Random(f"copies {seed}")
        self.world = World(seed)
        self.world.director = self
        self.difference = ""
        self._kafka, self._draw, self._counts = self.world.kafka, self.world.draw, self.world.counts
        self._kafka.hides_unstable_offsets = True
        start = random.Random(f"start of copies {seed}").choice(["earliest", "earliest", "latest"])
        self._settings = make_copy_settings(plan, start)
        self._group = self._settings.repartition_group
        for topic in self._settings.repartitioned:
            self._kafka.create_topic(topic, plan.choice([1, 2, 3]))
        self._left = plan.randint(MESSAGES_MAX // 3, MESSAGES_MAX)
        self._rate = plan.choice([0.05, 0.15, 0.4])
        self._sources: list[Transaction] = []
        self._trouble = plan.choice(TEMPERS)
        self._faults_max = plan.randint(1, 12)
        self._incidents_max = plan.randint(0, 4)
        self._incidents = CopyIncidents(self.world, self._settings, self._stop_all)
        self._once_nobody_runs: Callable[[], None] | None = None
        self._act, self._act_from = self._begin, 0
        self._is_refused, self._looked = False, 0
        """Whether a process has refused to copy, and how much of the timeline has been searched for that."""
        self.world.faults.temper = self._trouble
        names = ("one", "two", "three")[: plan.randint(1, 3)]
        self._slots = [
            _Slot(name, self.world.clock_s + plan.choice([0, 0, 3, 30]) * at) for at, name in enumerate(names)
        ]

    # The methods of `Director`

    def step(self) -> None:
        """See `Director`."""
        if self._once_nobody_runs is not None and not self._kafka.group(self._group).members:
            then, self._once_nobody_runs = self._once_nobody_runs, None
            then()
            for slot in self._slots:
                slot.start_s = self.world.clock_s
        for slot in self._slots:
            if slot.process is None and slot.start_s <= self.world.clock_s:
                slot.process = self._start(slot.name)
        self._act()

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        self.world.note("%s ended: %s", process.run, repr(status))
        if not ended_well(status):
            self._differ(f"{process.run} ended with {status!r}")
        for slot in self._slots:
            if slot.process is process:
                wait_s = self._draw.choice([0.1, 2.0, 8.0, 20.0]) if self._act == self._begin else 0.1
                slot.process = None
                slot.start_s = _NEVER_S if self._once_nobody_runs is not None else self.world.clock_s + wait_s

    def complain(self, text: str) -> None:
        """See `Director`. Only an unexpected error is logged as one."""
        self._differ(text)

    def _start(self, name: str) -> SimulatedProcess:
        application = self._settings.application.model_copy(update={"instance": name})
        settings = self._settings.model_copy(update={"application": application})
        return self.world.start_program(name, self.world.run_name(name), Copier(self.world, settings))

    # The phases

    def _begin(self) -> None:
        """The first phase, with all faults."""
        draw = self._draw
        if self._left and draw.random() < self._rate:
            for _ in range(min(self._left, draw.choice([1, 1, 2, 6]))):
                self._feed_one()
        if draw.random() < 0.01 and self._incidents_max:
            self._incidents_max -= 1
            self._incidents.let_one_happen()
        if draw.random() < 0.01:
            self._judge("on the way")
        if draw.random() < self._trouble.stop and self.world.processes:
            draw.choice(self.world.processes).program.stop()
            self._counts["stops"] += 1
        is_enough = self.world.faults.count >= self._faults_max and not self._left
        if is_enough or self.world.steps > _TROUBLE_STEPS_MAX:
            self._act, self._act_from = self._heal, self.world.steps
            self.world.note("now: healing")

    def _heal(self) -> None:
        """The second phase: no more faults are injected, and frozen processes wake."""
        self.world.faults.temper = CALM
        self._kafka.damaged = 0
        self.world.wake_all()
        while self._left:
            self._feed_one()
        while self._sources:
            self._kafka.end_source(self._sources.pop(), COMMITTED)
        age = self.world.steps - self._act_from
        if age % _LOOK_EVERY or self._once_nobody_runs is not None:
            return
        if self._is_through():
            self._incidents.is_lost = self._incidents.is_doubtful = False
            self._judge("at the end")
            self._counts["copies"] += sum(
                entry.is_committed
                for target in self._settings.repartitioned.values()
                for log in self._kafka.topics[target].logs
                for entry in log.archive
            )
            self._counts["aborted transactions"] += self._kafka.aborted
            self.world.end()
        elif self._look_for_refusals():
            self._start_over()
        elif age > _HEAL_STEPS_MAX:
            self._differ(f"not through: {committed_offsets(self._kafka, self._group)}")

    def _is_through(self) -> bool:
        """Return whether everything is copied, with no transaction left open."""
        kafka, ends = self._kafka, self._kafka.committed.get(self._group, {})
        if kafka.decided or any(identity.transaction is not None for identity in kafka.identities.values()):
            return False
        return all(
            ends.get((topic, partition)) == log.end and self._is_of_now(topic, partition)
            for topic in self._settings.repartitioned
            for partition, log in enumerate(kafka.topics[topic].logs)
        )

    def _is_of_now(self, topic: str, partition: int) -> bool:
        """Return whether a committed offset is one of the topics that exist now."""
        progress = decode_progress(self._kafka.notes[self._group][topic, partition])
        source, target = self._kafka.topics[topic], self._kafka.topics.get(self._settings.repartitioned[topic])
        if progress is None or target is None:
            return False
        return (progress.source, progress.target) == (source.topic_id, target.topic_id)

    def _look_for_refusals(self) -> bool:
        """Return whether processes have refused to copy since copying began, so that an operator has to act."""
        new, self._looked = self.world.timeline[self._looked :], len(self.world.timeline)
        self._is_refused |= any(_REFUSED in str(line) for line in new)
        return self._is_refused

    def _start_over(self) -> None:
        """Stop all processes, and delete the copies and the offsets, as the log demands."""

        def reset() -> None:
            self._incidents.reset()
            self._is_refused, self._looked = False, len(self.world.timeline)

        self._counts["refusals"] += 1
        self._stop_all(reset)

    def _stop_all(self, then: Callable[[], None]) -> bool:
        """Stop all processes, do something once the group has no members, and start them again.

        Return False if that is happening already.
        """
        if self._once_nobody_runs is not None:
            return False
        self._once_nobody_runs = then
        for slot in self._slots:
            slot.start_s = _NEVER_S
            if slot.process is not None:
                slot.process.program.stop()
        return True

    # Messages and the verdict

    def _feed_one(self) -> None:
        self._left -= 1
        draw, kafka = self._draw, self._kafka
        topic = draw.choice([*self._settings.repartitioned])
        partition = draw.randrange(len(kafka.topics[topic].logs))
        if self._sources and draw.random() < 0.3:
            kafka.end_source(self._sources.pop(), draw.choice([COMMITTED, COMMITTED, ABORTED]))
        within = None
        if draw.random() < 0.2:
            within = kafka.begin_source()
            self._sources.append(within)
        readable = b'{"id": "%b", "v": %d}' % (draw.choice(_THINGS).encode(), self._left)
        value = draw.choice([readable] * 9 + [None])
        kafka.append(topic, partition, draw.choice([None, b"key"]), value, within)

    def _judge(self, when: str) -> None:
        targets = self._settings.repartitioned.values()
        if self._incidents.is_doubtful or any(target not in self._kafka.topics for target in targets):
            return
        self._counts["judged"] += 1
        begins, lost = self._incidents.where_it_begins(), self._incidents.is_lost
        if fault := fault_in_copies(self._kafka, self._settings, begins, lost=lost):
            self._differ(f"{when}: {fault}")

    def _differ(self, text: str) -> None:
        if not self.difference:
            self.difference = text
            self.world.note("DIFFERENCE %s", text)
        self.world.end()
