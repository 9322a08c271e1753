"""Incidents that operators, other programs and the broker cause while processes run. See `faults` for failing calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from joiner.runtime.model import decode_manifest, manifest_key
from joiner.runtime.settings import JoinerSettings
from tests.simulation.feed import APPLICATION
from tests.simulation.strangers import Strangers
from tests.simulation.verdict import all_progress
from tests.simulation.world import World

_FORGETS_MAX: Final = 3
_BELATED_STEPS_MAX: Final = 60
"""The maximum delay of a record after the next owner's initialisation, in steps: as long as about two claims."""
_STATE: Final = f"{APPLICATION}.state"


class Incidents:
    """Causes incidents in a world."""

    def __init__(self, world: World, settings: JoinerSettings, only: Incident | None = None) -> None:
        """``only``: the single incident that happens, instead of a random one each time."""
        self._world, self._settings, self._only = world, settings, only
        self._draw = world.draw
        self.strangers: Strangers | None = None
        """Other programs that write to the result topics, once they have started."""
        self.kill_behind: int | None = None
        """If markers are forgotten more often than this, the next process that commits soon dies. None: never."""
        self._leaves_behind = False
        # In-flight requests of older owners, each with the step at which it arrives.
        self._belated: list[tuple[int, Callable[[], None]]] = []
        world.kafka.on_init = self._leave_behind

    def step(self) -> None:
        """Run the incidents that are due. Called before every client call."""
        for arrival in [arrival for arrival in self._belated if arrival[0] <= self._world.steps]:
            self._belated.remove(arrival)
            arrival[1]()
        if self.strangers is not None:
            self.strangers.step()

    def let_one_happen(self) -> None:
        """Cause a random incident, unless only one may happen."""
        (self._only or self._draw.choice(_INCIDENTS))(self)

    def cease(self) -> None:
        """End the broker's incidents: no more damaged reads or forgotten markers."""
        self._world.kafka.damaged, self._world.kafka.forgets = 0, None

    def end_strangers(self) -> None:
        """Stop the other programs."""
        if self.strangers is not None:
            self.strangers.end()
            self.strangers = None

    def reset_offsets(self) -> None:
        """Delete or change committed offsets of the group, as an operator may do."""
        offsets = self._world.kafka.committed.get(APPLICATION, {})
        if not all_progress(self._world.kafka, self._settings):
            return
        for place in list(offsets):
            if self._draw.random() < 0.5:
                offsets[place] = self._draw.randint(0, offsets[place])
            else:
                del offsets[place]
        self._did("offsets reset")

    def compact(self) -> None:
        """Compact the state topic."""
        for log in self._world.kafka.topics[_STATE].logs:
            log.compact(log.stable_end - self._draw.randint(0, 3))
        self._did("compaction")

    def skew_clock(self) -> None:
        """Make the broker's clock jump, or correct it again."""
        self._world.kafka.skew_ms = self._draw.choice([0, -(2 * 10**8), 2 * 10**8, -3_600_000])
        self._did("clock jump")

    def take_an_id(self) -> None:
        """Initialise a unit's transactional id without a claim, as a runner that dies in between would."""
        unit = self._draw.randrange(self._settings.topics.partitions)
        self._world.kafka.init(f"{APPLICATION}-{unit}", 60.0)
        self._did("outsider")

    def forget_markers(self) -> None:
        """Make the broker omit some or all markers of the next transaction that ends."""
        if self._world.counts["markers forgotten"] >= _FORGETS_MAX:
            return
        share = self._draw.choice([1.0, 0.5, 0.5])
        self._world.kafka.forgets = lambda _log: self._draw.random() < share
        self._world.kafka.restart_s = self._draw.choice([0.0, 2.0])
        if self._draw.random() < 0.5:
            # The process dies in the middle of the next transaction, whose abort also ends the forgotten one.
            self.kill_behind = self._world.kafka.times_forgotten
        self._did("markers forgotten")

    def slow_down_claims(self) -> None:
        """Make claims slow, as on an overloaded cluster. Some take longer than a session timeout."""
        self._world.slow_claims_s = self._draw.choice([(0.5, 3.0), (4.0, 9.0), (9.0, 16.0)])
        self._did("slow claims")

    def damage_reads(self) -> None:
        """Damage some of the records read next. The consumer reports an error and continues after them."""
        self._world.kafka.damaged += self._draw.randint(1, 3)
        self._did("errors inside a batch")

    def let_strangers_write(self) -> None:
        """Start other programs that write to every result topic in their own transactions."""
        if self.strangers is None:
            topics = self._settings.topics
            names = (topics.out, topics.late, topics.rejected, topics.unmatched)
            places = [(name, unit) for name in names for unit in range(topics.partitions)]
            self.strangers = Strangers(self._world, places)
            self._did("strangers")

    def leave_records_behind(self) -> None:
        """Delay a record of a unit's owner until after the next owner has initialised the transactional id."""
        self._leaves_behind = True
        self._did("belated records")

    def _leave_behind(self, transactional_id: str, epoch: int) -> None:
        if self._leaves_behind and epoch:
            self._leaves_behind = False
            arrive = partial(self._arrive_belated, transactional_id, epoch - 1)
            self._belated.append((self._world.steps + self._draw.randint(1, _BELATED_STEPS_MAX), arrive))

    def _arrive_belated(self, transactional_id: str, epoch: int) -> None:
        """Deliver a delayed record of a fenced owner: a copy of a written one, because results are deterministic."""
        kafka, unit = self._world.kafka, int(transactional_id.rpartition("-")[2])
        topic = self._draw.choice([self._settings.topics.out, self._settings.topics.late])
        written = [entry for entry in kafka.log(topic, unit).archive if entry.value is not None]
        if written:
            record = self._draw.choice(written)
            if kafka.arrive_belated(transactional_id, epoch, topic, unit, record.key, record.value):
                self._world.counts["belated records taken"] += 1
                self._world.note("belated in %s [%s]", topic, unit)

    def hide_topics(self) -> None:
        """Make the broker report its topics as unknown for a moment, as a broker that has just started does."""
        # Only once, because a process that gets this response twice in a row assumes that the topic was deleted, and
        # exits.
        if self._world.counts["topics unknown"]:
            return
        self._world.kafka.unknown_until_s = self._world.kafka.now_s() + self._draw.uniform(0.2, 4.0)
        self._did("topics unknown")

    def remove_old_input(self) -> None:
        """Remove input from before the newest snapshot, as retention does.

        If transactions may be dangling, remove only input from before the older snapshot, because resolving them starts
        there.
        """
        older = 1 + bool(self._world.counts["markers forgotten"] or self._world.counts["belated records"])
        for unit, log in enumerate(self._world.kafka.topics[_STATE].logs):
            keys = {manifest_key(unit, slot).encode() for slot in (0, 1)}
            found = [entry for entry in log.archive if entry.key in keys and entry.value and entry.is_committed]
            if len(found) >= older:
                manifests = sorted((decode_manifest(entry.value or b"") for entry in found), key=lambda m: m.serial)
                for topic, at in manifests[-older].offsets.items():
                    self._world.kafka.log(topic, unit).remove_before(self._draw.randint(0, at))
        self._did("retention")

    def _did(self, what: str) -> None:
        self._world.counts[what] += 1
        self._world.note(what)


Incident = Callable[[Incidents], None]

_INCIDENTS: Final = (
    Incidents.reset_offsets,
    Incidents.compact,
    Incidents.skew_clock,
    Incidents.take_an_id,
    Incidents.remove_old_input,
    Incidents.forget_markers,
    Incidents.leave_records_behind,
    Incidents.damage_reads,
    Incidents.hide_topics,
    Incidents.let_strangers_write,
    Incidents.slow_down_claims,
)
