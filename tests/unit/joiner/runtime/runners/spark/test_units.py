"""How the driver of the Spark stage plans, and how it handles the workers' outcomes. Uses neither Spark nor Kafka."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.metrics import TelemetryServer
from joiner.runtime.clock import SystemClock
from joiner.runtime.control import Released
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import Aborted, Fenced
from joiner.runtime.migration.protocol import Release
from joiner.runtime.model import Checkpoint, JoinSummary, OnTheWay
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.runners.spark.plans import (
    Outcome,
    Plan,
    Turn,
    decode_outcome,
    decode_plan,
    encode_outcome,
    encode_plan,
    pack,
    share_out,
    unpack,
)
from joiner.runtime.runners.spark.spark_task import SparkTask
from joiner.runtime.runners.spark.units import Units
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.flow_control import SILENT_S, Lead
from joiner.runtime.telemetry.metrics import JoinerMetrics
from joiner.runtime.telemetry.unit_gauges import UnitStatus
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings

UNITS = 2


class Transactions:
    """Keeps each commit. If ``fails`` is not empty, a call raises its last error instead."""

    has_pending_markers = False

    def __init__(self) -> None:
        self.written: list[tuple[dict[str, Any], Checkpoint, Any]] = []
        self.fails: list[Exception] = []

    def commit(self, messages: dict[str, Any], checkpoint: Checkpoint, snapshot: Any) -> SnapshotPlace | None:
        if self.fails:
            raise self.fails.pop()
        self.written.append((messages, checkpoint, snapshot))
        return SnapshotPlace(7, [1, 1]) if snapshot else None

    def check_owner(self) -> None:
        if self.fails:
            raise self.fails.pop()


RELEASE = Release(0, OnTheWay("m", "spark"), "green", Released(move="m", unit=0, to="green", instance="one"))


class Stage:
    """The units of a driver, the end offsets of the logs, and the units that were given up."""

    def __init__(self, **application: Any) -> None:
        given = {"snapshot_interval": "1h", **application}
        sections: dict[str, Any] = {"application": given, "spark": {"batch_records_max": 200}, "metrics": {"listen": 0}}
        self.settings = make_settings(partitions=UNITS, **sections)
        self.ends = {unit: {DATA: 0} for unit in range(UNITS)}
        claimant = Claimant("run", "one", "spark")
        self.telemetry = TelemetryServer(self.settings.metrics)
        self.meters = JoinerMetrics(self.settings, claimant, self.telemetry, self.statuses, set, SystemClock())
        self.units = Units(self.settings, "run", lambda: self.ends, self.meters, SystemClock())
        self.transactions = [Transactions() for _ in range(UNITS)]
        self.turn = Turn()

    def statuses(self) -> dict[int, UnitStatus]:
        return self.units.statuses()

    def value(self, name: str, **labels: str) -> float | None:
        return self.telemetry.registry.get_sample_value(f"lsb_joiner_{name}", {"unit": "0", **labels})

    def given_up(self) -> list[tuple[int, str]]:
        return [(number, type(error).__name__) for number, error in self.units.failures]

    def serve(self, number: int, at: int = 0, claim: int = 1) -> SparkTask:
        checkpoint: Any = Checkpoint(
            1, "app", number, "run", "one", "spark", {DATA: at}, {DATA: 0}, {}, UNITS, "", {}, {}, {}
        )
        transactions: Any = self.transactions[number]
        clock = SystemClock()
        served = SparkTask(
            number=number,
            claim_number=claim,
            transactions=transactions,
            clock=clock,
            checkpoint=checkpoint,
            place=SnapshotPlace(0, [0, 0]),
            snapshot_offsets={DATA: at},
            snapshot_at_s=clock.monotonic_s(),
        )
        self.units.start(number, served)
        return served

    def plans(self) -> list[Plan]:
        """Return the non-empty plans of the next batch."""
        turn = self.units.next_turn(self.turn)
        found = [] if turn == self.turn else [plan for plan in turn.plans if plan.end]
        self.turn = turn
        return found

    def bring(self, plan: Plan, **more: Any) -> None:
        self.units.accept(Outcome(plan, [pack({"out": Batch.of([b"k"], [b"v"])})], **more))

    def settle(self) -> None:
        """Wait until every transaction is finished, and handle its outcome."""
        until_s = time.monotonic() + 5
        while any(one.commit is not None for one in self.units.tasks.values()):
            assert time.monotonic() < until_s
            self.units.poll()


def begun(stage: Stage) -> None:
    """Run the batch that wakes Spark up."""
    for plan in stage.units.next_turn(stage.turn).plans:
        stage.units.accept(Outcome(plan))


def test_spark_is_woken_first_and_then_left_alone_while_there_is_nothing_to_do() -> None:
    stage = Stage()
    first = stage.units.next_turn(stage.turn)
    assert [(plan.unit, plan.claim, plan.end) for plan in first.plans] == [(0, 0, {}), (1, 0, {})]
    before = stage.units.is_awake
    stage.units.accept(Outcome(first.plans[0]))
    assert (before, stage.units.is_awake) == (False, True)
    stage.serve(0)
    assert stage.units.next_turn(first) == first


def test_a_batch_is_shared_by_the_units_and_each_goes_on_where_it_was() -> None:
    stage = Stage()
    begun(stage)
    stage.serve(0)
    stage.serve(1, at=40)
    stage.ends = {0: {DATA: 250}, 1: {DATA: 60}}
    first = stage.plans()
    assert [(plan.unit, plan.begin[DATA], plan.end[DATA]) for plan in first] == [(0, 0, 180), (1, 40, 60)]
    for plan in first:
        stage.bring(plan)
    # The next plan does not wait for the transactions.
    assert [(plan.unit, plan.begin[DATA], plan.end[DATA]) for plan in stage.plans()] == [(0, 180, 250)]
    stage.settle()
    assert [checkpoint.offsets[DATA] for _, checkpoint, _ in stage.transactions[0].written] == [180]


@pytest.mark.parametrize(
    ("waiting", "taken"),
    [
        ([], []),
        ([0, 0], [0, 0]),
        ([30, 70], [30, 70]),
        ([50, 200], [50, 50]),
        ([200, 50], [50, 50]),
        ([300, 100], [75, 25]),
        ([1, 300, 100, 0], [1, 74, 24, 0]),
        ([1_000_000, 60, 60], [99, 1, 1]),
    ],
)
def test_few_that_wait_are_taken_at_once_and_of_others_by_how_many_there_are(
    waiting: list[int], taken: list[int]
) -> None:
    assert share_out(dict(enumerate(waiting)), 100) == dict(enumerate(taken))


def test_what_a_worker_brings_is_counted_when_it_is_committed_and_told_as_any_runner_does() -> None:
    stage = Stage()
    begun(stage)
    served = stage.serve(0)
    stage.ends[0] = {DATA: 150}
    held = {"power": JoinSummary(3, 0, 1, (0, 10**9), None)}
    brought = {
        "counts": {"records": 100},
        "joins": held,
        "held_bytes": {"power": {"left": 900, "right": 0}},
        "appended_ms": {1: 4},
    }
    stage.transactions[0].fails.append(Aborted("no answer"))
    for _ in range(2):
        (plan,) = stage.plans()
        stage.bring(plan, records=100, pairs=1, **brought)
        stage.settle()
        if 0 not in stage.units.tasks:
            assert stage.value("records_total") is None
            served = stage.serve(0)
    assert served.checkpoint.offsets == {DATA: 150}
    stage.ends[0] = {DATA: 200}
    stage.plans()
    assert [stage.value(name) for name in ("records_total", "lag_records")] == [100, 50]
    left = {"join": "power", "side": "left"}
    assert [stage.value(name, **left) for name in ("held_records", "held_bytes")] == [3, 900]
    assert stage.value("unit_owner", owner="one", site="spark", placement="spark") == 1
    assert stage.telemetry.registry.get_sample_value("lsb_joiner_output_latency_seconds_count") == 4


def test_what_was_planned_before_a_unit_was_lost_is_thrown_away() -> None:
    stage = Stage()
    begun(stage)
    stage.serve(0)
    stage.ends[0] = {DATA: 50}
    (old,) = stage.plans()
    stage.serve(0, at=20, claim=2)
    stage.bring(old)
    (new,) = stage.plans()
    assert (new.claim, new.begin[DATA]) == (2, 20)
    stage.bring(old)
    assert stage.transactions[0].written == []


def test_what_a_query_that_has_ended_was_at_is_planned_again() -> None:
    stage = Stage()
    begun(stage)
    stage.serve(0)
    stage.ends[0] = {DATA: 50}
    (first,) = stage.plans()
    stage.units.query_started()
    stage.bring(first)
    assert stage.transactions[0].written == []
    assert [(plan.begin[DATA], plan.end[DATA]) for plan in stage.plans()] == [(0, 50)]


@pytest.mark.parametrize("failure", [Aborted("away"), Fenced(), MemoryError()])
def test_a_transaction_that_fails_costs_its_unit_what_was_not_committed(failure: Exception) -> None:
    stage = Stage()
    begun(stage)
    stage.serve(0)
    stage.serve(1)
    stage.transactions[0].fails = [failure]
    stage.ends = {0: {DATA: 50}, 1: {DATA: 50}}
    for plan in stage.plans():
        stage.bring(plan)
    stage.settle()
    assert stage.given_up() == [(0, type(failure).__name__)]
    assert list(stage.units.tasks) == [1]


@pytest.mark.parametrize(("owner", "told"), [([], "UnitStopped"), ([Fenced()], "Fenced")])
def test_a_fault_that_a_worker_finds_counts_only_while_the_unit_is_ours(owner: list[Exception], told: str) -> None:
    stage = Stage()
    begun(stage)
    stage.serve(0)
    stage.transactions[0].fails = owner
    stage.ends[0] = {DATA: 50}
    (plan,) = stage.plans()
    stage.units.accept(Outcome(plan, stopped="the buffer is full"))
    stage.settle()
    assert stage.given_up() == [(0, told)]
    assert stage.transactions[0].written == []


def test_what_could_not_be_joined_for_now_is_planned_again() -> None:
    stage = Stage()
    begun(stage)
    stage.serve(0)
    stage.ends[0] = {DATA: 50}
    (plan,) = stage.plans()
    stage.units.accept(Outcome(plan, failed="Kafka is away"))
    assert stage.plans() == []
    stage.units.tasks[0].not_before_s = 0.0
    assert stage.plans() == [plan]


def test_a_snapshot_is_asked_for_when_it_is_due_and_at_the_end_and_not_twice() -> None:
    stage = Stage(snapshot_records=100)
    begun(stage)
    served = stage.serve(0)
    stage.ends[0] = {DATA: 60}
    (plan,) = stage.plans()
    assert not plan.snapshot
    stage.bring(plan, records=120)
    stage.settle()
    (due,) = stage.plans()
    assert due.snapshot
    assert due.begin == due.end == {DATA: 60}
    stage.bring(due, snapshot=b"state")
    stage.settle()
    assert stage.transactions[0].written[-1][2] == (b"state", SnapshotPlace(0, [0, 0]))
    assert served.is_saved
    assert stage.plans() == []


def test_a_unit_that_leaves_brings_a_snapshot_and_names_its_target_and_is_gone() -> None:
    stage = Stage()
    begun(stage)
    stage.serve(0)
    stage.ends[0] = {DATA: 60}
    (under_way,) = stage.plans()
    calls: list[str] = []
    written = stage.units.release(RELEASE, lambda: calls.append("told"))
    assert written is not None
    stage.bring(under_way)
    assert 0 in stage.units.tasks
    (last,) = stage.plans()
    assert last.snapshot
    stage.bring(last, snapshot=b"state")
    assert 0 not in stage.units.tasks
    written.result(5)
    assert calls == ["told"]
    (_, before, _), (_, after, _) = stage.transactions[0].written
    assert (before.run, before.site) == ("run", "spark")
    assert (after.run, after.site) == ("moving:m:spark", "green")


def test_a_unit_that_cannot_leave_says_so() -> None:
    stage = Stage()
    begun(stage)
    stage.serve(0)
    written = stage.units.release(RELEASE, lambda: None)
    assert written is not None
    (last,) = stage.plans()
    stage.transactions[0].fails = [Aborted("away")]
    stage.bring(last, snapshot=b"state")
    assert isinstance(written.exception(5), Aborted)
    assert stage.given_up() == []


def test_a_topic_that_runs_ahead_waits_for_the_other() -> None:
    settings: dict[str, Any] = {"name": "power", "left": {"topic": "l"}, "right": {"topic": "r"}, "output": "p"}
    stage = Stage()
    stage.settings = make_settings(settings, partitions=UNITS, spark={"batch_records_max": 200})
    stage.units = Units(stage.settings, "run", lambda: stage.ends, stage.meters, SystemClock())
    begun(stage)
    served = stage.serve(0)
    served.checkpoint = SimpleNamespace(offsets={"l": 0, "r": 0}, start={})  # type: ignore[assignment] # the attributes read
    served.snapshot_offsets = {"l": 0, "r": 0}
    served.leads = [Lead("l", "r", fill=0.9, share=0.9)]
    stage.ends = {0: {"l": 50, "r": 50}}
    assert [plan.end for plan in stage.plans()] == [{"l": 0, "r": 50}]
    # After a while, a topic no longer waits for one without new records.
    served.quiet_since_s = {"r": time.monotonic() - 2 * SILENT_S}
    stage.ends = {0: {"l": 50, "r": 0}}
    assert [plan.end for plan in stage.plans()] == [{"l": 50, "r": 0}]


def test_so_little_is_read_at_once_that_a_side_can_still_be_paused() -> None:
    stage = Stage(buffer_records_max=80)
    begun(stage)
    stage.serve(0)
    stage.ends[0] = {DATA: 1000}
    assert [plan.end for plan in stage.plans()] == [{DATA: 40}]


def test_input_that_is_not_there_any_more_is_judged_by_a_claim() -> None:
    stage = Stage()
    begun(stage)
    stage.serve(0, at=30)
    stage.ends[0] = {DATA: 50}
    (plan,) = stage.plans()
    stage.units.accept(Outcome(plan, lost="it was removed"))
    assert stage.given_up() == [(0, "OwnershipInDoubt")]
    served = stage.serve(0, at=30)
    stage.ends[0] = {DATA: 20}
    assert stage.plans() == []
    served.short_since_s = time.monotonic() - 60
    assert stage.plans() == []
    assert stage.given_up() == [(0, "OwnershipInDoubt"), (0, "OwnershipInDoubt")]


def test_kafka_that_does_not_answer_is_asked_again_after_a_while() -> None:
    stage = Stage()
    asked: list[int] = []

    def ends() -> Any:
        asked.append(1)
        raise KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT))

    units = Units(stage.settings, "run", ends, stage.meters, SystemClock())
    assert units.next_turn(stage.turn) == stage.turn
    assert units.next_turn(stage.turn) == stage.turn
    assert asked == [1]


def test_plans_and_outcomes_arrive_as_they_were() -> None:
    plan = Plan(3, 9, {DATA: 0}, {DATA: 4}, {DATA: 2**40}, snapshot=True)
    assert decode_plan(encode_plan(plan)) == plan
    written = [
        {"out": Batch.of([b"k", b"k"], [b"1", b"2"]), "rejected": Batch.of(None, [b"bad"])},
        {},
        {"out": Batch.of([b"l"], [b"3"])},
    ]
    outcome = Outcome(plan, [pack(part) for part in written], {"pairs": 2}, leads=[Lead("a", "b", 0.5, 1.0)])
    outcome.snapshot = bytes(range(256)) * 100
    found = decode_outcome(memoryview(encode_outcome(outcome)))
    assert found == outcome
    assert {topic: batch.each() for topic, batch in unpack(found.parts).items()} == {
        "out": [(b"k", b"1"), (b"k", b"2"), (b"l", b"3")],
        "rejected": [(None, b"bad")],
    }
