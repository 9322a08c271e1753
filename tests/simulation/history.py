"""One history: a seed is played from the first record to the end of the input, and what it left behind is judged.

Three acts. Trouble: processes start, work, die, freeze and come back while input is written. Then nothing goes wrong
any more, and everything must come through within so many steps. Then the owners must be those that the group
names, and nothing may be left open.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

from joiner.runtime.model import decode_manifest, manifest_key
from joiner.runtime.settings import JoinerSettings
from tests.simulation.feed import APPLICATION, Step, make_feed, make_settings
from tests.simulation.memory_log import COMMITTED, Transaction
from tests.simulation.outcome import Outcome
from tests.simulation.stage import CHUNK_BYTES, on_stage, running
from tests.simulation.strangers import Strangers
from tests.simulation.temper import CALM, DEADLY, TEMPERS
from tests.simulation.verdict import all_progress, judge, runs_in_order, stable_ends
from tests.simulation.world import SimulatedProcess, World, ended_well

RECORDS: Final = 40
"""Records of the longest history: many short histories find more than a few long ones."""
_TROUBLE_STEPS_MAX: Final = 900
_HEAL_STEPS_MAX: Final = 4000
_REST_S: Final = 15.0
_OPEN_STEPS_MAX: Final = 1000
_LOOK_EVERY: Final = 20
_FORGETS_MAX: Final = 3
_BELATED_STEPS_MAX: Final = 60
"""Steps by which a record may arrive behind the initialisation of the next owner: about two claims."""
_FEED_AGAIN: Final = 500
"""Steps after which more input comes: only by that does an owner notice that it has lost its unit."""
# What a process says when it gives a unit up to another owner, and when it claims one that it was not given anew.
_LOST: Final = ("now owned by process", "now owned by spark")
_TRIED_AGAIN: Final = (
    "trying again",
    "going back to its last commit",
    # Said after a look at whose run it is; what the other does between that look and the claim cannot be known.
    "never claimed it",
    "taking it again",
)
_STATE: Final = f"{APPLICATION}.state"


def play(seed: int, *, in_spark: bool = False) -> Outcome:
    """Play a seed, with plain processes or with stages in Spark."""
    history = _History(seed, in_spark=in_spark)
    with on_stage(history.world):
        history.world.play()
    return Outcome(seed, history.difference, history.world.counts, history.world.timeline)


@dataclass
class _Slot:
    """An instance name, with the process that bears it now, or when one will."""

    settings: JoinerSettings
    start_s: float
    process: SimulatedProcess | None = None


class _History:
    """The director of a world."""

    def __init__(self, seed: int, *, in_spark: bool) -> None:
        plan = random.Random(f"plan {seed}")
        self._in_spark = in_spark
        self.world = World(seed)
        self.world.director = self
        self.world.snapshot_bytes_max = random.Random(f"snapshots {seed}").choice([10**9, 10**9, 3 * CHUNK_BYTES])
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
        self._others: Strangers | None = None
        # Whoever commits next dies soon, once markers were forgotten more often than so; None: as it comes.
        self._kill_behind: int | None = None
        self._leaves_behind = False
        # What older owners have on their way, with the step at which it arrives.
        self._belated: list[tuple[int, Callable[[], None]]] = []
        self.world.kafka.on_init = self._leave_behind
        self._trouble = plan.choice(TEMPERS)
        self._faults_max = plan.randint(1, 12)
        self._deaths = 0
        self._act = self._begin
        self._act_from = 0
        self._make_topics()
        self.world.faults.temper = self._trouble
        names = ("one", "two", "three")[: plan.randint(1, 3)] if not in_spark else ("one",)
        now_s = self.world.clock_s
        self._slots = [
            _Slot(self._named(name), now_s + plan.choice([0, 0, 3, 30]) * at) for at, name in enumerate(names)
        ]

    def _named(self, name: str) -> JoinerSettings:
        application = self._settings.application.model_copy(update={"instance": name})
        return self._settings.model_copy(update={"application": application})

    def _make_topics(self) -> None:
        topics = self._settings.topics
        for name in (*self._settings.input_topics, topics.out, topics.late, topics.rejected, topics.unmatched, _STATE):
            self.world.kafka.create_topic(name, topics.partitions)
        self.world.kafka.create_topic(self._settings.control_topic, 1)

    # The director's part

    def step(self) -> None:
        """See `Director`."""
        for slot in self._slots:
            if slot.process is None and slot.start_s <= self.world.clock_s:
                slot.process = self.world.start(slot.settings, in_spark=self._in_spark)
        for arrival in [arrival for arrival in self._belated if arrival[0] <= self.world.steps]:
            self._belated.remove(arrival)
            arrival[1]()
        if self._others is not None:
            self._others.step()
        self._act()

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
        """See `Director`: nobody makes a mistake here, so nothing may be set aside but for another owner's sake."""
        if any(phrase in text for phrase in _LOST):
            self.world.counts["given up to another owner"] += 1
        else:
            self._differ(f"set aside: {text}")

    def _begin(self) -> None:
        """Trouble."""
        draw = self._draw
        self._kill_behind_what_was_forgotten()
        if self._fed < len(self._feed) and draw.random() < self._rate:
            for _ in range(draw.choice([1, 1, 2, 6])):
                self._feed_one()
        if draw.random() < 0.01 and self._faults_max:
            draw.choice(_DEEDS)(self)
        # What Kafka has forgotten is put right by the next owner, and may show until then.
        if draw.random() < 0.002 and not self.world.counts["markers forgotten"]:
            self._judge("on the way")
        if draw.random() < self._trouble.stop and self.world.processes:
            draw.choice(self.world.processes).joiner.stop()
            self.world.counts["stops"] += 1
        if self.world.faults.count >= self._faults_max:
            self.world.faults.temper = CALM
            if self._fed >= len(self._feed):
                self._turn_to(self._heal)
        elif self.world.steps > _TROUBLE_STEPS_MAX:
            self._turn_to(self._heal)

    def _heal(self) -> None:
        """Nothing goes wrong any more, and whoever is frozen wakes."""
        self.world.faults.temper = CALM
        self.world.slow_claims_s = None
        self.world.wake_all()
        if self._others is not None:
            self._others.be_brief()
        while self._fed < len(self._feed):
            self._feed_one()
        age = self.world.steps - self._act_from
        if age % _LOOK_EVERY == 0 and self._fed_last and self._is_through():
            self._rest_until_s = self.world.clock_s + _REST_S
            self._turn_to(self._rest)
        elif age % _FEED_AGAIN == _LOOK_EVERY:
            self._feed_last()
        elif age > _HEAL_STEPS_MAX:
            self._differ(f"not through: {self._where()}")

    def _kill_behind_what_was_forgotten(self) -> None:
        if self._kill_behind is not None and self.world.kafka.times_forgotten > self._kill_behind:
            self._kill_behind = None
            self.world.faults.temper, self._deaths = DEADLY, self._count_deaths()
        if self.world.faults.temper is DEADLY and self._count_deaths() > self._deaths:
            self.world.faults.temper = self._trouble

    def _count_deaths(self) -> int:
        return sum(count for name, count in self.world.counts.items() if name.startswith("killed at"))

    def _feed_last(self) -> None:
        """One more record for each input: an owner that has lost its unit without noticing notices now."""
        self._fed_last = True
        kafka = self.world.kafka
        # In half of the histories the logs end with a control record, which nobody reads.
        within = kafka.begin_source() if self._ends_with_control else None
        for topic in self._settings.input_topics:
            for unit in range(self._settings.topics.partitions):
                kafka.append(topic, unit, None, b"the last one", within)
        if within is not None:
            kafka.end_source(within, COMMITTED)

    def _rest(self) -> None:
        """Nothing happens any more, for longer than any session."""
        if self._others is not None:
            self._others.end()
            self._others = None
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

    # What must hold

    def _is_through(self) -> bool:
        """All input is consumed, and each unit is claimed and served by whom the group gives it to, by nobody else."""
        kafka, found = self.world.kafka, all_progress(self.world.kafka, self._settings)
        units = range(self._settings.topics.partitions)
        due = {number: member.instance for member in kafka.group(APPLICATION).members for _, number in member.due}
        if self._in_spark:
            due = dict.fromkeys(units, "one")
        served = [(number, process.name) for process in self.world.processes for number in running(process.joiner)]
        return (
            sorted(served) == sorted(due.items())
            and {unit: checkpoint.instance for unit, checkpoint in found.items()} == due
            and found.keys() == set(units)
            and all(found[unit].offsets == stable_ends(kafka, self._settings, unit) for unit in units)
        )

    def _check_changes_of_owner(self) -> None:
        """A process claims a unit of another because the group has given it the unit, or when it tries again."""
        kafka = self.world.kafka
        allowed = Counter(kafka.group(APPLICATION).given)
        if self._in_spark:
            # A stage takes all of them, without any group.
            units = range(self._settings.topics.partitions)
            starts = [arguments[0] for _, _, _, text, *arguments in self.world.timeline if text == "%s starts"]
            allowed.update((run, unit) for run in starts for unit in units)
        for _, _, run, text, *arguments in self.world.timeline:
            if any(phrase in text for phrase in _TRIED_AGAIN):
                allowed[run, arguments[0]] += 1
        taken: Counter[tuple[str, int]] = Counter()
        for unit in range(self._settings.topics.partitions):
            changes = pairwise(["", *runs_in_order(kafka, self._settings, unit)])
            taken.update((run, unit) for before, run in changes if before != run)
        self.world.counts["changes of owner"] += taken.total()
        if too_often := taken - allowed:
            self._differ(f"taken more often than the group gave them: {dict(too_often)}")

    def _where(self) -> str:
        kafka, found = self.world.kafka, all_progress(self.world.kafka, self._settings)
        rows = [
            f"unit {unit}: {found[unit].offsets if unit in found else None} of "
            f"{stable_ends(kafka, self._settings, unit)}, run {found[unit].run if unit in found else None}"
            for unit in range(self._settings.topics.partitions)
        ]
        rows += [
            f"{process.run}: { {unit: state.value for unit, state in process.joiner.states.items()} }"
            for process in self.world.processes
        ]
        group = kafka.group(APPLICATION)
        rows += [
            f"group: {member.instance} due {sorted(member.due)} has {sorted(member.has)}" for member in group.members
        ]
        return "; ".join(rows)

    def _judge(self, when: str) -> None:
        self.world.counts["judged"] += 1
        difference, findings = judge(self.world.kafka, self._settings)
        if difference:
            self._differ(f"{when}:\n{difference}")
        elif findings is not None and when == "at the end":
            self.world.counts["records"] += findings.counts.get("input records", 0)
            self.world.counts["outputs"] += findings.total.found
            self.world.counts["aborted transactions"] += self.world.kafka.aborted
            self.world.counts["fenced members"] += self.world.kafka.group(APPLICATION).fenced

    def _differ(self, text: str) -> None:
        if not self.difference:
            self.difference = text
            self.world.note("DIFFERENCE %s", text)
        self.world.end()

    # What sources and operators do

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

    def deed_offsets(self) -> None:
        """An operator deletes the group's offsets, or sets them by hand."""
        offsets = self.world.kafka.committed.get(APPLICATION, {})
        if not all_progress(self.world.kafka, self._settings):
            return
        for place in list(offsets):
            if self._draw.random() < 0.5:
                offsets[place] = self._draw.randint(0, offsets[place])
            else:
                del offsets[place]
        self._did("offsets reset")

    def deed_compact(self) -> None:
        """The broker compacts the state topic, as far as it may."""
        for log in self.world.kafka.topics[_STATE].logs:
            log.compact(log.stable_end - self._draw.randint(0, 3))
        self._did("compaction")

    def deed_clock(self) -> None:
        """The broker's clock jumps."""
        self.world.kafka.skew_ms = self._draw.choice([0, -(2 * 10**8), 2 * 10**8, -3_600_000])
        self._did("clock jump")

    def deed_outsider(self) -> None:
        """Somebody takes a transactional id, and dies before the claim."""
        unit = self._draw.randrange(self._settings.topics.partitions)
        self.world.kafka.init(f"{APPLICATION}-{unit}", 60.0)
        self._did("outsider")

    def deed_forget(self) -> None:
        """The broker will forget to tell the partitions of the next transaction that ends, or some of them."""
        if self.world.counts["markers forgotten"] >= _FORGETS_MAX:
            return
        share = self._draw.choice([1.0, 0.5, 0.5])
        self.world.kafka.forgets = lambda _log: self._draw.random() < share
        self.world.kafka.restart_s = self._draw.choice([0.0, 2.0])
        if self._draw.random() < 0.5:
            # In the middle of the next transaction, which takes along what was forgotten.
            self._kill_behind = self.world.kafka.times_forgotten
        self._did("markers forgotten")

    def deed_slow_claims(self) -> None:
        """Claims take longer than sessions, and than a member waits for another: the cluster is overloaded."""
        self.world.slow_claims_s = self._draw.choice([(0.5, 3.0), (4.0, 9.0), (9.0, 16.0)])
        self._did("slow claims")

    def deed_damage(self) -> None:
        """Some of what is read next is damaged on its way: an error comes, and then what lies behind."""
        self.world.kafka.damaged += self._draw.randint(1, 3)
        self._did("errors inside a batch")

    def deed_strangers(self) -> None:
        """From now on other programs write to every result topic, in transactions of theirs."""
        if self._others is None:
            topics = self._settings.topics
            names = (topics.out, topics.late, topics.rejected, topics.unmatched)
            places = [(name, unit) for name in names for unit in range(topics.partitions)]
            self._others = Strangers(self.world, places)
            self._did("strangers")

    def deed_belated(self) -> None:
        """The next owner of some unit is too quick for what the one before has on its way."""
        self._leaves_behind = True
        self._did("belated records")

    def _leave_behind(self, transactional_id: str, epoch: int) -> None:
        if self._leaves_behind and epoch:
            self._leaves_behind = False
            arrive = partial(self._arrive_belated, transactional_id, epoch - 1)
            self._belated.append((self.world.steps + self._draw.randint(1, _BELATED_STEPS_MAX), arrive))

    def _arrive_belated(self, transactional_id: str, epoch: int) -> None:
        """A copy of something that the unit's owners have written before: its results are always the same."""
        kafka, unit = self.world.kafka, int(transactional_id.rpartition("-")[2])
        topic = self._draw.choice([self._settings.topics.out, self._settings.topics.late])
        written = [entry for entry in kafka.log(topic, unit).archive if entry.value is not None]
        if written:
            record = self._draw.choice(written)
            if kafka.arrive_belated(transactional_id, epoch, topic, unit, record.key, record.value):
                self.world.counts["belated records taken"] += 1
                self.world.note("belated in %s [%s]", topic, unit)

    def deed_unknown(self) -> None:
        """A broker that has just started does not know the topics for a moment."""
        # Told so twice in a row, at a distance of five seconds, a process ends: that is a topic which was deleted.
        if self.world.counts["topics unknown"]:
            return
        self.world.kafka.unknown_until_s = self.world.kafka.now_s() + self._draw.uniform(0.2, 4.0)
        self._did("topics unknown")

    def deed_retention(self) -> None:
        """Retention removes input that lies behind the newest snapshot.

        Behind the one before, where what hangs is to be settled: that begins there.
        """
        older = 1 + bool(self.world.counts["markers forgotten"] or self.world.counts["belated records"])
        for unit, log in enumerate(self.world.kafka.topics[_STATE].logs):
            keys = {manifest_key(unit, slot).encode() for slot in (0, 1)}
            found = [entry for entry in log.archive if entry.key in keys and entry.value and entry.is_committed]
            if len(found) >= older:
                manifests = sorted((decode_manifest(entry.value or b"") for entry in found), key=lambda m: m.serial)
                for topic, at in manifests[-older].offsets.items():
                    self.world.kafka.log(topic, unit).remove_before(self._draw.randint(0, at))
        self._did("retention")

    def _did(self, what: str) -> None:
        self.world.counts[what] += 1
        self.world.note(what)


_DEEDS: Final = (
    _History.deed_offsets,
    _History.deed_compact,
    _History.deed_clock,
    _History.deed_outsider,
    _History.deed_retention,
    _History.deed_forget,
    _History.deed_belated,
    _History.deed_damage,
    _History.deed_unknown,
    _History.deed_strangers,
    _History.deed_slow_claims,
)
