"""The plain process: consume, join, commit, for the units that the group gives it.

One data consumer reads all units at explicit offsets; each unit has its own transactions, so that the failure of one
undoes nothing of the others. They are written at the same time, and while they are, the next batch is read and joined.
Everything a unit has not committed can be thrown away at any moment: its state is built anew from its last commit.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from broker.topics import TopicError, wait_for_topics
from joiner.run.clients import KAFKA_LOG, log_range, make_admin, make_consumer, told
from joiner.run.continuity import Claimant, Elsewhere
from joiner.run.gaps import SecondReader
from joiner.run.handover import Handover, Host
from joiner.run.hanging import check_ended
from joiner.run.intake import Messages, sort_messages
from joiner.run.membership import Membership
from joiner.run.metrics import Metrics
from joiner.run.owned import Owned
from joiner.run.progress import RESET_RUN, Progress
from joiner.run.recovery import application_topics, recover
from joiner.run.settings import JoinerSettings
from joiner.run.state_log import read_progress
from joiner.run.taking import CLAIM_ATTEMPTS, Taker
from joiner.run.topic_watch import TopicWatch
from joiner.run.transaction import Aborted, Fenced, SnapshotPlace, UnitTransactions, unsubscribed_consumer
from joiner.run.unit import Effects, UnitStopped
from joiner.run.warming import Warm

_FENCED_WAIT_S: Final = 1.0
"""How long a fenced owner waits before it looks who has the unit: a claim takes well below it."""
_RETRY_WAIT_S: Final = 1.0
_LAST_COMMIT_S: Final = 3.0
"""For the last snapshots when units are given back: ending must take seconds, whatever Kafka does."""

_GC_THRESHOLD: Final = (50_000, 20, 50)
"""Objects and rounds between collections; a batch has tens of thousands of messages."""

_log = logging.getLogger(__name__)


class JoinerProcess:
    """Serves the units of an application until it is stopped."""

    def __init__(self, settings: JoinerSettings, claimant: Claimant, *, standby: bool = False) -> None:
        """``standby``: units of other placements are waited for, rather than an error."""
        self._settings = settings
        self._claimant = claimant
        self._stop = threading.Event()
        self._owned: dict[int, Owned] = {}
        # Units to be taken (again) not before a time, with what happened before; and those that cannot go on.
        self._waiting: dict[int, tuple[float, bool]] = {}
        self._aside: dict[int, str] = {}
        # Of those set aside because another process has claimed them: when it is looked whether they are still ours.
        self._lost: dict[int, float] = {}
        # What was read last, by unit and topic: messages, and where a log's end was met.
        self._batches: dict[int, dict[str, Messages]] = {}
        self._ends: dict[int, dict[str, int]] = {}
        self._second = SecondReader(settings)
        self._metrics = Metrics()
        host = Host(
            owned=self._owned,
            connect=self._connect,
            take=self._take,
            adopt=self._adopt,
            drop=self._drop,
            commit=self._commit,
            finish_commit=self._finish_commit,
            give_up=self._give_up,
            take_soon=self._take_soon,
            why_aside=lambda number: self._aside.get(number, ""),
        )
        self._moves = Handover(settings, claimant, host, standby=standby)

    def stop(self) -> None:
        """Ask the process to end; safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Serve until stopped; returns the exit status: 1 if a unit could not go on.

        Raises KafkaException, `broker.topics.TopicError` or `membership.InstanceTaken` where nothing can be served.
        """
        application = self._settings.application
        specs = application_topics(self._settings)
        facts = wait_for_topics(self._settings.kafka, specs, self._stop.is_set, _log, KAFKA_LOG)
        if facts is None:
            return 0
        self._admin = make_admin(self._settings.kafka)
        inputs = self._settings.input_topics
        watch = TopicWatch(self._admin, {name: found for name, found in facts.items() if name in inputs})
        self._lender = unsubscribed_consumer(self._settings)
        self._data = make_consumer(
            self._settings.kafka,
            application.name,
            # Tells positions behind control records and rolled back ones, which are never read as messages.
            enable_partition_eof=True,
            fetch_queue_backoff_ms=2,
            fetch_wait_max_ms=max(1, application.commit_interval // 1_000_000),
            queued_max_messages_kbytes=64 * 1024,
        )
        self._pool = ThreadPoolExecutor(self._settings.topics.partitions, "unit")
        self._taker = Taker(self._settings, self._admin, self._lender, self._stop.wait)
        self._moves.start(self._pool, self._admin, self._lender)
        membership = Membership(self._settings, self._claimant.placement, self._give_back)
        who = application.instance, self._claimant.placement, self._claimant.run
        _log.info("joiner %s at %s (%s): waiting for units of %r", *who, application.name)
        # What lives now lives to the end: the collector need not look at it for every batch.
        gc.freeze()
        # Of what is made for every batch, almost nothing is for it to find.
        gc.set_threshold(*_GC_THRESHOLD)
        try:
            while not self._stop.is_set() and not self._all_aside(membership):
                membership.poll()
                self._moves.poll(membership.units)
                self._take_units(membership)
                self._cycle()
                self._metrics.report(self._owned_units())
                watch.check()
            # Looked at here: leaving the group gives back what was set aside, too.
            status = 1 if self._stuck() else 0
        except TopicError:
            # What was read last may be of another topic: it must not be saved as the state.
            for number in list(self._owned):
                self._drop(number)
            raise
        finally:
            self._finish_all()
            self._moves.close()
            membership.close()
            self._data.close()
            self._second.close()
            self._lender.close()
            self._pool.shutdown(wait=False)
            self._metrics.report(self._owned_units(), last=True)
        return status

    def _owned_units(self) -> dict[int, int]:
        return {number: owned.recovered.unit.held() for number, owned in self._owned.items()}

    def _all_aside(self, membership: Membership) -> bool:
        stuck = self._stuck()
        return bool(stuck) and membership.units <= stuck

    def _stuck(self) -> set[int]:
        """Units that cannot go on. Those that another process has claimed do: there, or here again after a while."""
        return self._aside.keys() - self._lost.keys()

    # Taking units

    def _take_units(self, membership: Membership) -> None:
        now = time.monotonic()
        for number in [number for number, look_s in list(self._lost.items()) if look_s <= now]:
            # By now the group has told everyone. If it still gives us the unit, it was claimed by a process that
            # did not know yet that it had lost it, and nobody serves it.
            del self._lost[number]
            if self._aside.pop(number, None) is not None:
                _log.info("unit %s: the group still gives it to us; taking it again", number)
        busy = self._moves.busy
        known = self._owned.keys() | self._waiting.keys() | self._aside.keys() | busy
        for number in membership.units - known:
            self._waiting[number] = (now, False)
        # Listed, for a claim of a move may be arranging what comes next.
        waiting = {number for number, (not_before, _) in list(self._waiting.items()) if not_before <= now}
        due = sorted((waiting & membership.units) - busy)
        for number, taken in zip(due, self._pool.map(self._take, due), strict=True):
            if taken is not None:
                self._adopt(number, taken)

    def _take_soon(self, number: int) -> None:
        self._aside.pop(number, None)
        self._waiting[number] = (time.monotonic(), False)

    def _adopt(self, number: int, taken: Owned) -> None:
        self._waiting.pop(number, None)
        self._aside.pop(number, None)
        self._owned[number] = taken
        offsets = taken.recovered.unit.offsets
        self._data.incremental_assign([TopicPartition(topic, number, at) for topic, at in offsets.items()])
        self._moves.adopted(number)

    def _take(self, number: int, claimant: Claimant | None = None, warm: Warm | None = None) -> Owned | None:
        """Claim and recover a unit; None: not now, it stays waiting, or it was set aside or is waited for."""
        was_fenced = self._waiting.get(number, (0.0, False))[1]
        try:
            if was_fenced and not self._still_ours(number):
                return None
            if warm is None:
                self._connect(number)
            transactions, progress = self._taker.claim(number, claimant or self._claimant, warm)
            try:
                given = (warm.unit, warm.readers) if warm else ()
                recovered = recover(self._settings, number, transactions, progress, *given)
            except Fenced:
                self._look_who_has(number)
                return None
            _log.info("unit %s: taken", number)
            return Owned(recovered, transactions, time.monotonic())
        except Elsewhere as found:
            self._leave_elsewhere(number, found.progress, str(found))
        except UnitStopped as stopped:
            self._set_aside(number, str(stopped))
        except Fenced:
            self._set_aside(
                number,
                f"unit {number}: claimed by others {CLAIM_ATTEMPTS} times; another runner wants it too",
            )
        except (Aborted, KafkaException) as error:
            _log.warning("unit %s: cannot be taken now, trying again: %s", number, told(error))
            self._waiting[number] = (time.monotonic() + _RETRY_WAIT_S, was_fenced)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            self._set_aside_for_defect(number, "taking it failed", error)
        return None

    def _connect(self, number: int) -> None:
        """Connects the consumer before the unit is served; told of its partitions without a connection, it waits."""
        for topic in self._settings.input_topics:
            log_range(self._data, topic, number)

    def _look_who_has(self, number: int) -> None:
        _log.warning("unit %s: somebody else may have it; looking who", number)
        self._waiting[number] = (time.monotonic() + _FENCED_WAIT_S, True)

    def _still_ours(self, number: int) -> bool:
        """After being fenced: whether the progress record still names this run. If not, the unit is lost."""
        progress = read_progress(
            self._settings.kafka, self._settings.application.name, self._settings.state_topic, number
        )
        # None: what we wrote hangs (see `hanging`), and nobody else has written anything.
        if progress is None or progress.run == self._claimant.run:
            _log.info("unit %s: the one that fenced us never claimed it; taking it back", number)
            return True
        why = f"unit {number}: now owned by {progress.owner} (run {progress.run}); given up"
        if not self._claimant.may_continue(progress):
            self._leave_elsewhere(number, progress, why)
            return False
        self._set_aside(number, why)
        if progress.run != RESET_RUN:
            self._lost[number] = time.monotonic() + self._settings.application.session_timeout / 1e9
        return False

    def _leave_elsewhere(self, number: int, progress: Progress, why: str) -> None:
        """The unit belongs to another placement."""
        if self._moves.found_elsewhere(number, progress):
            self._waiting.pop(number, None)
        else:
            self._set_aside(number, why)

    def _set_aside(self, number: int, why: str) -> None:
        _log.error("%s", why)
        self._aside[number] = why
        self._waiting.pop(number, None)

    # Working

    def _cycle(self) -> None:
        application = self._settings.application
        messages = self._data.consume(application.batch_records_max, application.commit_interval / 1e9)
        self._batches, self._ends, errors = sort_messages(messages, self._settings.input_topics)
        for error in errors:
            self._read_error(*error)
        for number, owned in list(self._owned.items()):
            self._turn(number, owned)
            if self._owned.get(number) is owned:
                self._pause_what_runs_ahead(number, owned)

    def _turn(self, number: int, owned: Owned) -> None:
        """Join what was read of a unit, while its last commit is written, and hand in the next."""
        application = self._settings.application
        batches = self._batches.pop(number, {})
        ends = owned.ends(batches, self._ends.pop(number, {}))
        if owned.commit is not None and owned.commit.written.done() and not self._finish_commit(number, owned):
            return
        if not ends and (owned.commit is not None or not owned.snapshot_due(application)):
            return
        owned.has_uncommitted = True
        try:
            effects, count = self._apply(number, owned, batches, ends)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            if self._finish_commit(number, owned):
                self._give_up(number, error)
            return
        if self._finish_commit(number, owned):
            self._hand_in(number, owned, effects, with_snapshot=owned.snapshot_due(application))
            self._metrics.count(count, len(effects.joined))

    def _pause_what_runs_ahead(self, number: int, owned: Owned) -> None:
        ahead = owned.to_pause()
        if ahead == owned.paused:
            return
        if pausing := ahead - owned.paused:
            self._data.pause(_places(number, pausing))
            _log.info("unit %s: %s waits: its records fill the buffer", number, ", ".join(sorted(pausing)))
        if resuming := owned.paused - ahead:
            self._data.resume(_places(number, resuming))
            _log.info("unit %s: %s goes on", number, ", ".join(sorted(resuming)))
        owned.paused = ahead

    def _apply(
        self, number: int, owned: Owned, batches: dict[str, Messages], ends: dict[str, int]
    ) -> tuple[Effects, int]:
        unit = owned.recovered.unit
        for topic, batch in batches.items():
            if batch.offset[0] > unit.offsets[topic]:
                self._second.check_gap(topic, number, unit.offsets[topic], batch.offset[0])
        count = sum(map(len, batches.values()))
        owned.records += count
        return unit.apply(batches, ends), count

    def _commit(
        self,
        transactions: UnitTransactions,
        effects: Effects,
        progress: Progress,
        snapshot: tuple[bytes, SnapshotPlace] | None,
    ) -> SnapshotPlace | None:
        place = transactions.commit(effects.messages(self._settings.topics), progress, snapshot)
        check_ended(self._settings, progress.unit, transactions)
        return place

    def _hand_in(self, number: int, owned: Owned, effects: Effects, *, with_snapshot: bool) -> None:
        """Begin the commit of everything that the unit's state holds, the one before being finished."""
        try:
            progress = owned.progress()
            snapshot = owned.snapshot() if with_snapshot else None
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            self._give_up(number, error)
            return
        owned.hand_in(progress, self._pool.submit(self._commit, owned.transactions, effects, progress, snapshot))

    def _finish_commit(self, number: int, owned: Owned) -> bool:
        """Wait for what is on its way, if anything is; returns whether the unit goes on."""
        try:
            owned.finish_commit()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            self._give_up(number, error)
            return False
        return True

    def _give_up(self, number: int, error: Exception) -> None:
        """A batch failed: forget the unit, and begin it anew at its last commit where that may help."""
        self._drop(number)
        if isinstance(error, Aborted | KafkaException):
            _log.warning("unit %s: going back to its last commit: %s", number, told(error))
            self._waiting[number] = (time.monotonic() + _RETRY_WAIT_S, False)
        elif isinstance(error, Fenced):
            self._look_who_has(number)
        elif isinstance(error, UnitStopped):
            self._set_aside(number, str(error))
        else:
            self._set_aside_for_defect(number, "a batch failed", error)

    def _set_aside_for_defect(self, number: int, what: str, error: Exception) -> None:
        _log.debug("unit %s", number, exc_info=error)
        self._set_aside(
            number,
            f"unit {number}: {what} with {type(error).__name__}: {told(error)}; nothing of it was written. Restart "
            "the joiner; if it happens again, this is a defect to report (--log-level debug shows where)",
        )

    def _read_error(self, error: KafkaError, partition: int | None, topic: str | None) -> None:
        if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART}:  # noqa: SLF001
            number = int(partition or 0)
            if number in self._owned:
                # The topic was deleted, or retention removed records before they were read. If the unit is still
                # ours, the claim finds out which. If not, then only what its owner has done with lies behind us.
                _log.warning("unit %s: %s cannot be read where the join stands: %s", number, topic, error.str())
                self._drop(number)
                self._waiting[number] = (time.monotonic(), True)
            return
        _log.warning("reading %s [%s]: %s", topic, partition, error.str())

    def _drop(self, number: int) -> None:
        """Forget a unit without committing anything."""
        owned = self._owned.pop(number, None)
        if owned is not None:
            if owned.paused:
                # Whoever takes the unit next begins to read at once.
                self._data.resume(_places(number, owned.paused))
            self._data.incremental_unassign(_places(number, owned.recovered.unit.offsets))
            # What the current batch still holds of it was read for a state that is gone.
            self._batches.pop(number, None)
            self._ends.pop(number, None)

    # Giving units back

    def _give_back(self, units: list[int], lost: bool) -> None:  # noqa: FBT001 - a callback's signature
        mine = [number for number in units if number in self._owned]
        if not lost:
            self._write_snapshots(mine)
        for number in mine:
            self._drop(number)
        # Last: a commit that has failed meanwhile has put its unit among those that are to be taken again.
        for number in units:
            self._waiting.pop(number, None)
            self._aside.pop(number, None)
            self._lost.pop(number, None)
        self._moves.give_back(units)
        if mine:
            _log.info("units %s: %s", mine, "lost to the group" if lost else "given back")

    def _finish_all(self) -> None:
        self._write_snapshots(list(self._owned))
        for number in list(self._owned):
            self._drop(number)

    def _write_snapshots(self, units: list[int]) -> None:
        """Finish the commits of the units, and write last snapshots, as far as that takes no long time."""
        until_s = time.monotonic() + _LAST_COMMIT_S
        self._finish_soon(units, until_s)
        for number in units:
            owned = self._owned.get(number)
            if owned is not None and owned.commit is None and not owned.has_uncommitted and owned.is_changed():
                self._hand_in(number, owned, Effects(), with_snapshot=True)
        self._finish_soon(units, until_s)
        for number in units:
            if number in self._owned and self._owned[number].commit is not None:
                # Not needed for correctness: whoever comes next finds out whether it was, and replays.
                _log.warning("unit %s: the last commit is not known to be written", number)

    def _finish_soon(self, units: list[int], until_s: float) -> None:
        """Finish those commits that are written before a moment."""
        under_way = {
            number: owned.commit for number in units if (owned := self._owned.get(number)) is not None and owned.commit
        }
        wait([commit.written for commit in under_way.values()], timeout=max(0.0, until_s - time.monotonic()))
        for number, commit in under_way.items():
            if commit.written.done():
                self._finish_commit(number, self._owned[number])


def _places(number: int, topics: Iterable[str]) -> list[TopicPartition]:
    """The partitions of a unit in some topics."""
    return [TopicPartition(topic, number) for topic in sorted(topics)]
