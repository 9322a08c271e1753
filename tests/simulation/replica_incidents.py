"""What happens around replicas: other programs write to their outputs, markers are forgotten, and input is removed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from joiner.runtime.kafka.snapshot_log import beginning, cut
from joiner.runtime.kafka.transaction import UnitTransactions
from joiner.runtime.kafka.unit_producer import UnitProducer
from joiner.runtime.model import RESET_RUN, SLOTS, Checkpoint, decode_manifest, manifest_key
from joiner.runtime.settings import JoinerSettings
from tests.simulation.bugs import changed
from tests.simulation.feed import copied
from tests.simulation.strangers import Strangers
from tests.simulation.temper import DEADLY
from tests.simulation.verdict import all_progress
from tests.simulation.world import World


class ReplicaIncidents:
    """The incidents of a history, and what it has planned."""

    def __init__(self, world: World, replicas: Sequence[JoinerSettings], plan: random.Random, forgets: int) -> None:
        """``forgets``: how many transactions are to lose markers."""
        self._world, self._replicas, self._forgets = world, replicas, forgets
        self._draw = world.draw
        self._forgets_foundation = forgets > 0 and plan.random() < 0.5
        apart = random.Random(copied(plan).random())
        self._kills_second_founder = self._forgets_foundation and apart.random() < 0.7
        self._forgets_beginning = forgets > 0 and apart.random() < 0.5
        self._fences_founder = apart.random() < 0.2
        self._kills_writer = forgets > 0 and apart.random() < 0.6
        self._kills_committer = forgets > 0 and apart.random() < 0.6
        self._removes = plan.random() < 0.5
        # Missing output is found from the older snapshot.
        self._needed = 1 + (forgets > 0)
        self._lets_strangers_write = plan.random() < 0.25
        self._strangers: Strangers | None = None
        self._kills_behind: int | None = None
        self._deaths, self._temper = 0, world.faults.temper
        self._has_ceased = False

    def step(self, *, is_resetting: bool) -> None:
        """Let something happen, with some probability. ``is_resetting``: a replica is being reset."""
        draw = self._draw
        if self._forgets and draw.random() < 0.01:
            self._forgets -= 1
            share = draw.choice([1.0, 0.5, 0.5])
            self._forget(share)
        self._kill_behind_what_was_forgotten()
        if self._strangers is not None:
            self._strangers.step()
        elif self._lets_strangers_write and draw.random() < 0.05:
            self._let_strangers_write()
        if self._removes and not is_resetting and draw.random() < 0.05:
            self._remove_old_input()

    def cease(self) -> None:
        """Let nothing happen any more, except to foundations, most of which begin after the first phase."""
        if self._has_ceased:
            return
        self._has_ceased = True
        self._world.kafka.forgets = None
        self._forgets_beginning = False
        if self._strangers is not None:
            self._strangers.end()
            self._strangers = None

    @contextmanager
    def watching_beginnings(self) -> Iterator[None]:
        """Patch how units begin, to count foundations in several transactions, and to let something happen in some."""
        begin_anew, finish, commit = UnitTransactions.begin_anew, UnitTransactions._finish, UnitTransactions.commit  # noqa: SLF001 - the last step

        def counted(one: Any, state: Any, checkpoint: Any, snapshot: Any = None, **more: Any) -> None:
            records = beginning(state, checkpoint, snapshot)
            self._world.counts["founded in several transactions"] += (
                len(cut(records, self._world.snapshot_bytes_max)) > 1
            )
            begin_anew(one, state, checkpoint, snapshot, **more)
            if self._fences_founder and not more.get("with_offsets", True):
                self._fences_founder = False
                # As a runner does that dies before it has claimed the unit.
                self._world.kafka.init(f"{checkpoint.application}-{checkpoint.unit}", 60.0)
                self._world.counts["founder fenced"] += 1

        def finished(one: Any, checkpoint: Checkpoint, written: Any) -> None:
            if checkpoint.run == RESET_RUN:
                self._end_foundation()
            finish(one, checkpoint, written)

        def committed(one: Any, messages: Any, checkpoint: Any, *rest: Any, **more: Any) -> Any:
            if self._forgets_beginning and {} in more.get("starts", ()):
                self._forgets_beginning = False
                self._forget(0.5)
            producer = one._producer  # noqa: SLF001 - it dies with its process
            if messages and self._kills_writer:
                self._kills_writer = False
                vars(producer)["commit"] = partial(self._die_in_commit, producer, checkpoint)
            elif messages and self._kills_committer:
                self._kills_committer = False
                vars(producer)["commit"] = partial(self._die_after_commit, producer)
            return commit(one, messages, checkpoint, *rest, **more)

        with (
            changed(UnitTransactions, "begin_anew", counted),
            changed(UnitTransactions, "_finish", finished),
            changed(UnitTransactions, "commit", committed),
        ):
            yield

    def _end_foundation(self) -> None:
        """Let the last transaction of a foundation stay open, or the next founder die before its last transaction."""
        if self._forgets_foundation:
            self._forgets_foundation = False
            self._forget(1.0)
        elif self._kills_second_founder:
            self._kills_second_founder = False
            self._world.kill_running("the end of a foundation")

    def _die_in_commit(self, producer: UnitProducer, checkpoint: Checkpoint) -> None:
        """Let a process die just before a commit, and Kafka forget some markers of what the next claim aborts."""
        producer.flush()
        transaction = self._world.kafka.identities[f"{checkpoint.application}-{checkpoint.unit}"].transaction
        assert transaction is not None, "a checkpoint was written"
        share = self._draw.choice([0.3, 0.6, 1.0])
        for log in [log for log in transaction.logs if self._draw.random() < share]:
            log.leave_open(transaction)
        self._world.kill_running("the end of a transaction")
        self._world.counts["markers forgotten"] += 1
        UnitProducer.commit(producer)

    def _die_after_commit(self, producer: UnitProducer) -> None:
        """Let a process die just after a commit, of which Kafka forgets some markers."""
        self._forget(self._draw.choice([0.3, 0.6]))
        UnitProducer.commit(producer)
        self._world.kill_running("a commit that loses markers")

    def _forget(self, share: float) -> None:
        self._world.kafka.forgets = lambda _log: self._draw.random() < share
        self._world.counts["markers forgotten"] += 1
        self._kills_behind = self._world.kafka.times_forgotten if self._draw.random() < 0.5 else None

    def _kill_behind_what_was_forgotten(self) -> None:
        """Let a process die soon, perhaps in the next transaction, whose abort also ends the forgotten one."""
        faults = self._world.faults
        if self._kills_behind is not None and self._world.kafka.times_forgotten > self._kills_behind:
            self._kills_behind, self._deaths = None, self._count_deaths()
            self._temper, faults.temper = faults.temper, DEADLY
        elif faults.temper is DEADLY and self._count_deaths() > self._deaths:
            faults.temper = self._temper

    def _count_deaths(self) -> int:
        return sum(count for name, count in self._world.counts.items() if name.startswith("killed at"))

    def _let_strangers_write(self) -> None:
        """Start other programs that write to the output topics in their own transactions."""
        names = [name for settings in self._replicas for name in settings.output_topics.values()]
        units = range(self._replicas[0].topics.partitions)
        self._strangers = Strangers(self._world, [(name, unit) for name in names for unit in units])
        self._world.counts["strangers"] += 1

    def _remove_old_input(self) -> None:
        """Remove input that precedes the snapshots of all replicas, of units that all of them have begun."""
        found = [all_progress(self._world.kafka, settings) for settings in self._replicas]
        for unit in range(self._replicas[0].topics.partitions):
            if all(unit in one and one[unit].run != RESET_RUN for one in found):
                kept = [offsets for settings in self._replicas for offsets in self._last_snapshots(settings, unit)]
                for topic in self._replicas[0].input_topics:
                    self._world.kafka.log(topic, unit).remove_before(min(offsets[topic] for offsets in kept))
                self._world.counts["retention"] += 1

    def _last_snapshots(self, settings: JoinerSettings, unit: int) -> list[dict[str, int]]:
        """Return the offsets of the unit's last snapshots that are needed, or the beginning if there are fewer."""
        keys = {manifest_key(unit, slot).encode() for slot in range(SLOTS)}
        entries = self._world.kafka.log(settings.state_topic, unit).archive
        found = [decode_manifest(one.value) for one in entries if one.key in keys and one.value and one.is_committed]
        last = [manifest.offsets for manifest in found[-self._needed :]]
        return last if len(last) == self._needed else [dict.fromkeys(settings.input_topics, 0)]
