"""The plain process: consume, join, commit, for the units that the group gives it.

One data consumer reads all units at explicit offsets; each unit has its own transactions, so that the failure of one
undoes nothing of the others. They are written at the same time, and while they are, the next batch is read and joined.
Everything a unit has not committed can be thrown away at any moment: its state is built anew from its last commit.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from typing import Final

import msgspec
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.topics import TopicError, wait_for_topics
from broker.metrics import TelemetryServer
from joiner.runtime.kafka.clients import KAFKA_LOG, make_admin
from joiner.runtime.kafka.gaps import GapVerifier
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.topics import TopicWatch, application_topics
from joiner.runtime.kafka.transaction import UnitTransactions, goes_apart, unsubscribed_consumer
from joiner.runtime.migration.handover import Handover, Host
from joiner.runtime.migration.protocol import Release
from joiner.runtime.model import Checkpoint
from joiner.runtime.ownership.assignment import AssignmentManager
from joiner.runtime.ownership.claim import Claimer
from joiner.runtime.ownership.concurrent_claims import ConcurrentClaims
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.membership import Membership
from joiner.runtime.ownership.restore import recover
from joiner.runtime.ownership.unit_reports import UnitReports
from joiner.runtime.ownership.warmup import Warm
from joiner.runtime.runners.active_task import ActiveTask
from joiner.runtime.runners.commit import Commit, write_commit
from joiner.runtime.runners.gc_tuning import tune_gc
from joiner.runtime.runners.input import InputConsumer
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decode import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.function_failures import FailureLog
from joiner.runtime.telemetry.metrics import JoinerMetrics, UnitStatus
from joiner.runtime.telemetry.throughput import Throughput

_LAST_COMMIT_S: Final = 3.0
"""For the last snapshots when units are given back: ending must take seconds, whatever Kafka does."""

_log = logging.getLogger(__name__)


class JoinerProcess:
    """Serves the units of an application until it is stopped."""

    def __init__(self, settings: JoinerSettings, claimant: Claimant, *, standby: bool = False) -> None:
        """``standby``: units of other placements are waited for, rather than an error."""
        self._settings = settings
        self._claimant = claimant
        self._stop = threading.Event()
        self._owned: dict[int, ActiveTask] = {}
        # What was read last, by unit and topic: messages, and where a log's end was met.
        self._batches: dict[int, dict[str, Messages]] = {}
        self._ends: dict[int, dict[str, int]] = {}
        self._read_s = -math.inf
        """When was read last."""
        self._second = GapVerifier(settings)
        self._throughput = Throughput()
        self._failures = FailureLog(settings)
        self._teller = TelemetryServer(settings.metrics)
        self._meters = JoinerMetrics(
            settings, claimant, self._teller, self._unit_statuses, lambda: self._wanted.failed_units
        )
        self._wanted = AssignmentManager(settings, claimant, in_group=True, fenced=self._meters.fenced)
        self._takeovers = ConcurrentClaims(self._take, self._adopt)
        host = Host(
            owned=self._owned,
            connect=self._connect,
            take=self._takeovers.begin,
            taking=lambda: self._takeovers.busy,
            release=self._release,
            give_up=self._give_up,
            schedule_claim=self._wanted.schedule_claim,
            why_failed=lambda number: self._wanted.failed.get(number, ""),
        )
        self._notices = UnitReports(claimant)
        # Force is for the start; moves need none.
        self._moves = Handover(settings, replace(claimant, take=False), host, standby=standby)

    def stop(self) -> None:
        """Ask the process to end; safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Serve until stopped; returns the exit status: 1 if a unit could not go on.

        Raises KafkaException, `TopicError`, `InstanceTaken` where nothing can be served, SettingsError of metrics.
        """
        with self._teller:
            return self._run()

    def _run(self) -> int:
        application = self._settings.application
        specs = application_topics(self._settings)
        facts = wait_for_topics(self._settings.kafka, specs, self._is_over, _log, KAFKA_LOG)
        if facts is None:
            return 0
        self._admin = make_admin(self._settings.kafka)
        inputs = self._settings.input_topics
        watch = TopicWatch(self._admin, {name: found for name, found in facts.items() if name in inputs})
        self._group_metadata_consumer = unsubscribed_consumer(self._settings)
        self._input = InputConsumer(self._settings)
        self._pool = ThreadPoolExecutor(self._settings.topics.partitions, "unit")
        self._wanted.start(
            Claimer(self._settings, self._admin, self._group_metadata_consumer), self._moves.found_elsewhere
        )
        self._takeovers.start(self._pool)
        self._moves.start(self._pool, self._admin, self._group_metadata_consumer)
        self._notices.start(self._pool, self._moves.say)
        membership = Membership(self._settings, self._claimant.placement, self._give_back)
        self._teller.why_unready = lambda: self._why_unready(membership)
        who = application.instance, self._claimant.placement, self._claimant.run
        _log.info("joiner %s at %s (%s): waiting for units of %r", *who, application.name)
        tune_gc()
        try:
            while not self._is_over() and not self._all_failed(membership):
                membership.poll()
                self._moves.poll(membership.units)
                self._take_units(membership)
                self._notices.poll(self._wanted.obstacles())
                self._cycle()
                if self._teller.is_look_due():
                    for number, owned in self._owned.items():
                        owned.log_ends = self._input.log_ends(number)
                self._throughput.report(self._owned_units())
                watch.check()
            # Looked at here: leaving the group gives back what was set aside, too.
            status = 1 if self._wanted.failed_units else 0
        except TopicError:
            # What was read last may be of another topic: it must not be saved as the state.
            for number in list(self._owned):
                self._drop(number)
            raise
        finally:
            held = self._finish_all()
            self._moves.close()
            membership.close()
            self._input.close()
            self._second.close()
            self._group_metadata_consumer.close()
            self._pool.shutdown(wait=False)
            self._failures.close()
            self._throughput.report(held, last=True)
        return status

    def _is_over(self) -> bool:
        """Asked whenever the loop turns."""
        self._teller.heartbeat()
        return self._stop.is_set()

    def _why_unready(self, membership: Membership) -> str:
        if not membership.is_told:
            return "the group has not said yet which units are served here"
        missing = membership.units - self._owned.keys()
        return f"units {sorted(missing)} are not served, see the log" if missing else ""

    def _unit_statuses(self) -> dict[int, UnitStatus]:
        """What metrics tell of the units; called by other threads."""
        return {number: owned.status() for number, owned in list(self._owned.items())}

    def _owned_units(self) -> dict[int, int]:
        return {number: owned.recovered.unit.held() for number, owned in self._owned.items()}

    def _all_failed(self, membership: Membership) -> bool:
        stuck = self._wanted.failed_units
        return bool(stuck) and membership.units <= stuck

    # Taking units

    def _take_units(self, membership: Membership) -> None:
        """Serve what was taken, and begin to take what is due; nothing here waits."""
        self._takeovers.poll(membership.units)
        self._wanted.plan_retries(membership.units)
        busy = self._owned.keys() | self._takeovers.busy | self._moves.busy
        for number in self._wanted.due(membership.units, busy, self._moves.claimed_by_others):
            self._takeovers.begin(number)

    def _adopt(self, number: int, taken: ActiveTask) -> None:
        self._wanted.taken(number)
        self._owned[number] = taken
        self._input.add(number, taken.recovered.unit.offsets)
        self._moves.adopted(number)

    def _take(
        self, number: int, claimant: Claimant | None, warm: Warm | None, is_over: Callable[[], bool]
    ) -> ActiveTask | None:
        """Claim and recover a unit; None: not now, it stays waiting, or it was set aside or is waited for."""

        def serving(transactions: UnitTransactions, checkpoint: Checkpoint, readers: Readers) -> ActiveTask:
            if warm is None:
                self._input.connect(number)
            recovered = recover(self._settings, number, transactions, checkpoint, warm.unit if warm else None, readers)
            self._meters.taken(checkpoint, time.monotonic() - began_s)
            return ActiveTask(recovered, transactions, time.monotonic())

        began_s = time.monotonic()
        with closing(warm.readers if warm else Readers(self._settings)) as readers:
            readers.is_over = is_over
            return self._wanted.take(number, claimant, warm, readers, serving)

    def _connect(self, number: int) -> None:
        self._input.connect(number)

    # Working

    def _cycle(self) -> None:
        interval_s = self._settings.application.commit_interval / 1e9
        # What the last batch took counts: the next one has filled meanwhile.
        wait_s = max(0.0, self._read_s + interval_s - time.monotonic())
        self._batches, self._ends, errors = self._input.read(wait_s)
        self._read_s = time.monotonic()
        for error in errors:
            self._read_error(*error)
        for number, owned in list(self._owned.items()):
            self._turn(number, owned)
            if self._owned.get(number) is owned:
                self._pause_what_runs_ahead(number, owned)

    def _turn(self, number: int, owned: ActiveTask) -> None:
        """Join what was read of a unit, while its last commit is written, and hand in the next."""
        application = self._settings.application
        batches = self._batches.pop(number, {})
        ends = owned.ends(batches, self._ends.pop(number, {}))
        if owned.commit is not None and owned.commit.written.done() and not self._finish_commit(number, owned):
            return
        # What was read before the topics were paused, has to wait here.
        if (
            owned.waiting is not None
            and (ends or owned.commit is None)
            and not self._begin_waiting_commit(number, owned)
        ):
            return
        if not ends and (owned.commit is not None or not owned.snapshot_due(application)):
            return
        owned.has_uncommitted = True
        try:
            owned.waiting = self._apply(number, owned, batches, ends)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            if owned.is_writing_long or self._finish_commit(number, owned):
                self._give_up(number, error)
            return
        if not owned.is_writing_long:
            self._begin_waiting_commit(number, owned)

    def _begin_waiting_commit(self, number: int, owned: ActiveTask) -> bool:
        """Hand in what the last batch has brought forth, the commit before being finished; whether the unit goes on."""
        (effects, count), owned.waiting = owned.waiting or (Effects(), 0), None
        if not self._finish_commit(number, owned):
            return False
        self._begin_commit(number, owned, effects, with_snapshot=owned.snapshot_due(self._settings.application))
        self._throughput.count(count, len(effects.joined), effects.failed_pairs)
        return self._owned.get(number) is owned

    def _pause_what_runs_ahead(self, number: int, owned: ActiveTask) -> None:
        ahead = owned.to_pause()
        if ahead == owned.paused:
            return
        if pausing := ahead - owned.paused:
            self._input.pause(number, pausing)
            _log.info("unit %s: %s waits: %s", number, ", ".join(sorted(pausing)), owned.why_paused)
        if resuming := owned.paused - ahead:
            self._input.resume(number, resuming)
            _log.info("unit %s: %s goes on", number, ", ".join(sorted(resuming)))
        owned.paused = ahead

    def _apply(
        self, number: int, owned: ActiveTask, batches: dict[str, Messages], ends: dict[str, int]
    ) -> tuple[Effects, int]:
        unit = owned.recovered.unit
        self._second.check(number, unit.offsets, batches)
        count = sum(map(len, batches.values()))
        owned.records += count
        return unit.apply(batches, ends), count

    def _commit(
        self,
        transactions: UnitTransactions,
        effects: Effects,
        checkpoint: Checkpoint,
        snapshot: tuple[bytes, SnapshotPlace] | None,
    ) -> SnapshotPlace | None:
        messages = effects.messages(self._settings.topics)
        return write_commit(self._meters, transactions, messages, effects.appended_ms, checkpoint, snapshot)

    def _begin_commit(
        self, number: int, owned: ActiveTask, effects: Effects, *, with_snapshot: bool, stopped: bool = False
    ) -> None:
        """Begin the commit of everything that the unit's state holds, the one before being finished."""
        try:
            checkpoint = msgspec.structs.replace(owned.checkpoint(effects.failed_pairs), stopped=stopped)
            snapshot = owned.snapshot() if with_snapshot else None
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            self._give_up(number, error)
            return
        self._failures.note(number, effects.failed_pairs)
        written = self._pool.submit(self._commit, owned.transactions, effects, checkpoint, snapshot)
        owned.begin_commit(Commit(checkpoint, written, goes_apart(snapshot)))

    def _finish_commit(self, number: int, owned: ActiveTask) -> bool:
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
        self._wanted.give_up(number, error)

    def _read_error(self, error: KafkaError, partition: int | None, topic: str | None) -> None:
        number = -1 if partition is None else partition
        owned = self._owned.get(number)
        if number < 0:
            # Brokers are away, which the library's log tells of, and it goes on by itself when they are back.
            _log.debug("reading: %s", error.str())
        elif owned is None:
            _log.debug("reading %s [%s], which is not served: %s", topic, number, error.str())
        elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART}:  # noqa: SLF001
            # The topic was deleted, or retention removed records before they were read. If the unit is still
            # ours, the claim finds out which. If not, then only what its owner has done with lies behind us.
            _log.warning("unit %s: %s cannot be read where the join stands: %s", number, topic, error.str())
            self._drop(number)
            self._wanted.verify_owner(number, 0.0)
        elif owned.is_writing_long or self._finish_commit(number, owned):
            # What the client gives next may lie behind records that it has left out (a damaged batch, for one).
            self._give_up(number, KafkaException(KafkaError(error.code(), f"reading {topic}: {error.str()}")))

    def _drop(self, number: int) -> None:
        """Forget a unit without committing anything."""
        owned = self._owned.pop(number, None)
        if owned is not None:
            self._input.remove(number, owned.recovered.unit.offsets, owned.paused)
            # What the current batch still holds of it was read for a state that is gone.
            self._batches.pop(number, None)
            self._ends.pop(number, None)

    # Giving units back

    def _release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """Finish what is on its way, and begin the last transaction, for a move."""
        number = action.unit
        owned = self._owned[number]
        if owned.is_writing_long or not self._finish_commit(number, owned) or owned.has_uncommitted:
            return None
        try:
            checkpoint = msgspec.structs.replace(owned.checkpoint(), run=action.way.run(), placement=action.to)
            snapshot = owned.snapshot() if owned.is_changed() else None
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            self._give_up(number, error)
            return None
        self._drop(number)

        def write() -> None:
            self._commit(owned.transactions, Effects(), checkpoint, snapshot)
            then()

        return self._pool.submit(write)

    def _give_back(self, units: list[int], lost: bool) -> None:  # noqa: FBT001 - a callback's signature
        mine = [number for number in units if number in self._owned]
        until_s = time.monotonic() + (0.0 if lost else _LAST_COMMIT_S)
        # First: while these are called off, the others are written.
        self._takeovers.call_off(units, 0.0)
        if not lost:
            self._write_snapshots(mine, until_s)
        self._takeovers.call_off(units, until_s)
        for number in mine:
            self._drop(number)
        # Last: a commit that has failed meanwhile has put its unit among those that are to be taken again.
        for number in units:
            self._wanted.forget(number)
        self._moves.give_back(units)
        if mine:
            _log.info("units %s: %s", mine, "lost to the group" if lost else "given back")

    def _finish_all(self) -> dict[int, int]:
        """Give all units back; returns what each held."""
        until_s = time.monotonic() + _LAST_COMMIT_S
        self._takeovers.call_off(self._takeovers.busy, 0.0)
        self._write_snapshots(list(self._owned), until_s, stopped=True)
        self._takeovers.call_off(self._takeovers.busy, until_s)
        held = self._owned_units()
        for number in held:
            self._drop(number)
        return held

    def _write_snapshots(self, units: list[int], until_s: float, *, stopped: bool = False) -> None:
        """Finish the commits of the units, and write last snapshots, as far as that is done before a moment.

        ``stopped``: their checkpoints say that this process has ended.
        """
        self._finish_soon(units, until_s)
        for number in units:
            owned = self._owned.get(number)
            if owned is None or owned.commit is not None or owned.has_uncommitted:
                continue
            if stopped or owned.is_changed():
                self._begin_commit(number, owned, Effects(), with_snapshot=owned.is_changed(), stopped=stopped)
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
