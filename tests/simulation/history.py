"""Runs the history of a seed, from the first record to the end of the input, and checks the result.

A history has three phases. First, processes start, work, die, freeze and restart while input is written. Then fault
injection stops, and all input must be consumed within a fixed number of steps. At the end, the owners must match the
group's assignment, and no transaction may be open.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any, Final

from joiner.runtime.membership.site import SiteMembership
from joiner.runtime.settings import JoinerSettings
from tests.simulation.feed import APPLICATION, Step, make_feed, make_settings
from tests.simulation.incidents import Incident, Incidents
from tests.simulation.memory_log import COMMITTED, Transaction
from tests.simulation.orders import Orders
from tests.simulation.outcome import Outcome
from tests.simulation.stage import CHUNK_BYTES, membership_in, on_stage, running
from tests.simulation.temper import CALM, DEADLY, TEMPERS
from tests.simulation.verdict import all_progress, judge, runs_in_order, stable_ends
from tests.simulation.world import SimulatedProcess, Slot, World, ended_well

RECORDS: Final = 40
"""The number of records in the longest history. Many short histories find more defects than a few long ones."""
_TROUBLE_STEPS_MAX: Final = 900
_HEAL_STEPS_MAX: Final = 25_000
"""Many, because the snapshot of an align takes a dozen of the small chunks, and a snapshot may follow every batch. The
scheduler may also starve a process for longer than the failure timeout, so that its units move again and again. Of
10,000 histories, 9,998 needed fewer than 12,000 steps, and the others 12,500 and 17,500."""
_SLOW_TO_END: Final = 0.1
"""The share of histories in which a claim must ask Kafka twice, because a transaction is still being ended."""
_MIXED: Final = 0.2
"""The share of histories in which some processes are of an older release, which are replaced in the end."""
_REST_S: Final = 15.0
_OPEN_STEPS_MAX: Final = 1000
_LOOK_EVERY: Final = 20
_FEED_AGAIN: Final = 500
"""More input is written after this many steps. Without it, an owner does not detect that it has lost its unit."""
# Phrases logged when a process gives a unit up to another owner, and when it claims a unit without a new assignment by
# the group.
_LOST: Final = ("now owned by process",)
_TRIED_AGAIN: Final = (
    "retrying in",
    # Logged after a check of the owner. The other runner may act between that check and the claim.
    "claiming it again",
)
_GAINED: Final = "to be served by this instance"
_STATE: Final = f"{APPLICATION}.state"
_FOUND: Final = ("input records", "watermarks written")
"""The counts of the checker that are added up over all histories."""


def play(seed: int, only: Incident | None = None) -> Outcome:
    """Run the history of a seed. ``only``: the single incident that happens in it."""
    history = History(seed, only)
    with on_stage(history.world):
        history.world.play()
    return Outcome(seed, history.difference, history.world.counts, history.world.timeline)


class History:
    """The `Director` of a simulated history."""

    def __init__(self, seed: int, only: Incident | None = None) -> None:
        plan = random.Random(f"plan {seed}")
        self.world = World(seed)
        self.world.director = self
        self.world.snapshot_bytes_max, self.world.slow_claims_s = _extremes(seed)
        self.world.kafka.is_slow_to_end = random.Random(f"ends {seed}").random() < _SLOW_TO_END
        self.difference = ""
        self._draw = self.world.draw
        self._settings = make_settings(plan)
        self._feed = make_feed(plan, self._settings, plan.randint(RECORDS // 3, RECORDS))
        self._fed = 0
        self._fed_last = False
        self._ends_with_control = plan.random() < 0.5
        self._rest_until_s = 0.0
        self._rate = plan.choice([0.05, 0.15, 0.4])
        self._sources: dict[int, Transaction] = {}
        self._incidents = Incidents(self.world, self._settings, only)
        self._trouble = plan.choice(TEMPERS)
        self._faults_max = plan.randint(1, 12)
        self._deaths = 0
        self._act = self._begin
        self._act_from = 0
        self._make_topics()
        self.world.faults.temper = self._trouble
        self._is_mixed = plan.random() < _MIXED
        names = ("one", "two", "three")[: plan.randint(1, 3)]
        self._orders = Orders(self.world, self._settings, seed, list(names))
        now_s = self.world.clock_s
        self._slots = [
            Slot(self._named(name), now_s + plan.choice([0, 0, 3, 30]) * at) for at, name in enumerate(names)
        ]

    def _named(self, name: str) -> JoinerSettings:
        application = self._settings.application.model_copy(update={"instance": name})
        return self._settings.model_copy(update={"application": application})

    def _make_topics(self) -> None:
        topics = self._settings.topics
        for name in (*self._settings.input_topics, topics.out, topics.late, topics.rejected, topics.unmatched, _STATE):
            self.world.kafka.create_topic(name, topics.partitions)
        self.world.kafka.create_topic(self._settings.control_topic, 1)

    # The methods of `Director`

    def step(self) -> None:
        """See `Director`."""
        for slot in self._slots:
            if slot.process is None and slot.start_s <= self.world.clock_s:
                self._choose_release(slot.settings.application.instance)
                slot.process = self.world.start(slot.settings)
        self._incidents.step()
        self._act()

    def _choose_release(self, name: str) -> None:
        is_older = self._is_mixed and self._act == self._begin and self._draw.random() < 0.5
        (self.world.older.add if is_older else self.world.older.discard)(name)
        self.world.counts["starts of an older release"] += is_older

    def begin_healing(self) -> None:
        """Start the second phase."""
        self._turn_to(self._heal)

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        self.world.note("%s ended: %s", process.run, repr(status))
        if not ended_well(status):
            self._differ(f"{process.run} ended with {status!r}")
        for slot in self._slots:
            if slot.process is process:
                wait_s = self._draw.choice([0.1, 2.0, 8.0, 20.0]) if self._act == self._begin else 0.1
                slot.process, slot.start_s = None, self.world.clock_s + wait_s

    def complain(self, text: str) -> None:
        """See `Director`. A unit may fail here only because another process owns it."""
        if any(phrase in text for phrase in _LOST):
            self.world.counts["given up to another owner"] += 1
        else:
            self._differ(f"set aside: {text}")

    def _begin(self) -> None:
        """The first phase, with all faults."""
        draw = self._draw
        self._kill_behind_what_was_forgotten()
        if self._fed < len(self._feed) and draw.random() < self._rate:
            for _ in range(draw.choice([1, 1, 2, 6])):
                self._feed_one()
        if draw.random() < 0.01 and self._faults_max:
            self._incidents.let_one_happen()
        self._orders.step()
        # The next owner resolves transactions whose markers were forgotten. Until then, the output may be wrong.
        if draw.random() < 0.002 and not self.world.counts["markers forgotten"]:
            self._judge("on the way")
        if draw.random() < self._trouble.stop and self.world.processes:
            draw.choice(self.world.processes).joiner.stop()
            self.world.counts["stops"] += 1
        if self.world.faults.count >= self._faults_max:
            self.world.faults.temper = CALM
            if self._fed >= len(self._feed):
                self.begin_healing()
        elif self.world.steps > _TROUBLE_STEPS_MAX:
            self.begin_healing()

    def _heal(self) -> None:
        """The second phase: no more faults are injected, and frozen processes wake."""
        self.world.faults.temper = CALM
        self.world.slow_claims_s = None
        self._incidents.cease()
        self.world.wake_all()
        for slot in self._slots:
            if slot.process is not None and slot.settings.application.instance in self.world.older:
                slot.process.joiner.stop()
        if self._incidents.strangers is not None:
            self._incidents.strangers.be_brief()
        while self._fed < len(self._feed):
            self._feed_one()
        age = self.world.steps - self._act_from
        if age % _LOOK_EVERY == 0 and self._fed_last and self._is_through():
            self._rest_until_s = self.world.clock_s + _REST_S
            self._turn_to(self._rest)
        elif age % _FEED_AGAIN == _LOOK_EVERY:
            self._feed_last()
        elif age > _HEAL_STEPS_MAX:
            self._differ(f"not through: {_where(self.world, self._settings)}")

    def _kill_behind_what_was_forgotten(self) -> None:
        behind = self._incidents.kill_behind
        if behind is not None and self.world.kafka.times_forgotten > behind:
            self._incidents.kill_behind = None
            self.world.faults.temper, self._deaths = DEADLY, self._count_deaths()
        if self.world.faults.temper is DEADLY and self._count_deaths() > self._deaths:
            self.world.faults.temper = self._trouble

    def _count_deaths(self) -> int:
        return sum(count for name, count in self.world.counts.items() if name.startswith("killed at"))

    def _feed_last(self) -> None:
        """Write one more record to each input, so that an owner detects if it has lost its unit."""
        self._fed_last = True
        kafka = self.world.kafka
        # In half of the histories, the logs end with a control record, which a consumer never returns.
        within = kafka.begin_source() if self._ends_with_control else None
        for topic in self._settings.input_topics:
            for unit in range(self._settings.topics.partitions):
                kafka.append(topic, unit, None, b"the last one", within)
        if within is not None:
            kafka.end_source(within, COMMITTED)

    def _rest(self) -> None:
        """The third phase: nothing changes for longer than any session timeout."""
        self._incidents.end_strangers()
        if self.world.clock_s < self._rest_until_s:
            return
        if not self._is_through():
            self._turn_to(self._heal)
            return
        kafka = self.world.kafka
        open_now = [name for name, identity in kafka.identities.items() if identity.transaction is not None]
        open_now += [f"{name} [{unit}]" for name, unit, log in kafka.logs() if log.stable_end < log.end]
        if not open_now:
            self._check_changes_of_owner()
            self._judge("at the end")
            self.world.end()
        elif self.world.steps - self._act_from > _OPEN_STEPS_MAX:
            self._differ(f"transactions are left open: {open_now}")

    def _turn_to(self, act: Any) -> None:
        self.world.haste = 6 if act == self._rest else 1
        self._act, self._act_from = act, self.world.steps
        self.world.note("now: %s", act.__name__)

    # Invariants

    def _is_through(self) -> bool:
        """Return whether all input is consumed, and each unit is owned and served only by its assigned member."""
        kafka, found = self.world.kafka, all_progress(self.world.kafka, self._settings)
        units = range(self._settings.topics.partitions)
        due = _assigned(self.world)
        served = [(number, process.name) for process in self.world.processes for number in running(process.joiner)]
        return (
            sorted(served) == sorted(due.items())
            and {unit: checkpoint.instance for unit, checkpoint in found.items()} == due
            and found.keys() == set(units)
            and all(found[unit].offsets == stable_ends(kafka, self._settings, unit) for unit in units)
        )

    def _check_changes_of_owner(self) -> None:
        """Check that processes claimed each other's units only after they were to serve them, or in a retry."""
        kafka = self.world.kafka
        allowed = Counter(kafka.group(APPLICATION).given)
        for _, _, run, text, *arguments in self.world.timeline:
            if any(phrase in text for phrase in _TRIED_AGAIN):
                allowed[run, arguments[0]] += 1
            elif _GAINED in text:
                allowed.update((run, unit) for unit in arguments[0])
        taken: Counter[tuple[str, int]] = Counter()
        for unit in range(self._settings.topics.partitions):
            changes = pairwise(["", *runs_in_order(kafka, self._settings, unit)])
            taken.update((run, unit) for before, run in changes if before != run)
        self.world.counts["changes of owner"] += taken.total()
        if too_often := taken - allowed:
            self._differ(f"claimed more often than they were to be served: {dict(too_often)}")

    def _judge(self, when: str) -> None:
        self.world.counts["judged"] += 1
        difference, findings = judge(self.world.kafka, self._settings)
        if difference:
            self._differ(f"{when}:\n{difference}")
        elif findings is not None and when == "at the end":
            self.world.counts.update({what: findings.counts.get(what, 0) for what in _FOUND})
            self.world.counts["outputs"] += findings.total.found
            self.world.counts["aborted transactions"] += self.world.kafka.aborted
            self.world.counts["fenced members"] += self.world.kafka.group(APPLICATION).fenced

    def _differ(self, text: str) -> None:
        if not self.difference:
            self.difference = text
            self.world.note("DIFFERENCE %s", text)
        self.world.end()

    # Input

    def _feed_one(self) -> None:
        if self._fed >= len(self._feed):
            return
        step: Step = self._feed[self._fed]
        self._fed += 1
        kafka = self.world.kafka
        within = None
        if step.within >= 0:
            if step.within not in self._sources:
                self._sources[step.within] = kafka.begin_source()
            within = self._sources[step.within]
        if step.ends_as:
            assert within is not None
            kafka.end_source(within, step.ends_as)
        else:
            kafka.append(step.topic, step.unit, step.key, step.value, within)


def _extremes(seed: int) -> tuple[int, tuple[float, float] | None]:
    """Return the values of `World.snapshot_bytes_max` and `World.slow_claims_s` with which a history begins.

    Half of the histories begin with slow claims, because a unit without a checkpoint is the one that a claim may
    mistake for a new one.
    """
    snapshot_bytes_max = random.Random(f"snapshots {seed}").choice([10**9, 10**9, 3 * CHUNK_BYTES])
    return snapshot_bytes_max, random.Random(f"claims {seed}").choice([None, None, (4.0, 9.0), (9.0, 16.0)])


def _assigned(world: World) -> dict[int, str]:
    """Return the owners of the units in the newest assignment that a running process knows."""
    known = [one for process in world.processes if (one := membership_in(process.joiner)) is not None]
    states = [one.state for one in known if isinstance(one, SiteMembership)]
    newest = max(states, key=lambda state: state.epoch, default=None)
    return {unit: one.owner for unit, one in enumerate(newest.units)} if newest is not None else {}


def _where(world: World, settings: JoinerSettings) -> str:
    kafka, found = world.kafka, all_progress(world.kafka, settings)
    rows = [
        f"unit {unit}: {found[unit].offsets if unit in found else None} of "
        f"{stable_ends(kafka, settings, unit)}, run {found[unit].run if unit in found else None}"
        for unit in range(settings.topics.partitions)
    ]
    rows += [
        f"{process.run}: { {unit: state.value for unit, state in process.joiner.states.items()} }"
        for process in world.processes
    ]
    group = kafka.group(APPLICATION)
    rows += [f"group: {member.instance} due {sorted(member.due)} has {sorted(member.has)}" for member in group.members]
    return "; ".join(rows)
