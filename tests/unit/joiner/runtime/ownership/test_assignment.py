"""How units that cannot be claimed or served are handled: what is retried, when, and how it is reported."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.topics import TopicFacts
from joiner.runtime.control import NotServed, decode, encode
from joiner.runtime.kafka.transaction import Aborted, Fenced, OwnershipInDoubt
from joiner.runtime.model import RESET_RUN, Checkpoint, OnTheWay, UnitStopped
from joiner.runtime.ownership import assignment, claim, retry_policy
from joiner.runtime.ownership.assignment import AssignmentManager
from joiner.runtime.ownership.claim import ClaimLost
from joiner.runtime.ownership.eligibility import Claimant, LogShort, OwnedElsewhere, check_log_range
from joiner.runtime.ownership.retry_policy import CAUSES, JITTER, Obstacle, RetryTracker, cause_of
from joiner.runtime.ownership.unit_reports import REPEAT_S, UnitReports, describe
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings

UNIT = 3
NO_READERS: Any = None
AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - the public name of the constant


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def checkpoint(run: str, site: str = "process") -> Checkpoint:
    return Checkpoint(1, "app", UNIT, run, "two", site, {DATA: 4}, {DATA: 0}, {}, 4, "", {}, {}, {})


class Claims:
    """Stands in for a `Claimer`: each claim raises the next of ``outcomes``, or succeeds when none are left."""

    def __init__(self) -> None:
        self.outcomes: list[Exception] = []
        self.made = 0
        self.by_force: list[bool] = []

    def claim(self, _unit: int, claimant: Claimant, *_rest: Any) -> tuple[Any, Any]:
        self.made += 1
        self.by_force.append(claimant.force)
        if self.outcomes:
            raise self.outcomes.pop(0)
        return None, None


class Runner:
    """The loop of a runner with one unit assigned; ``turn`` claims it when a claim is due."""

    def __init__(self, clock: ManualClock, run: str = "run") -> None:
        self.clock = clock
        self.claims = Claims()
        claims: Any = self.claims
        claimant = Claimant(run, "one")
        self.wanted = AssignmentManager(make_settings(partitions=4), claimant, claims, lambda *_: False, clock)
        self.is_served = False
        self.is_current = True

    def turn(self) -> None:
        self.wanted.plan_retries({UNIT})
        busy = {UNIT} if self.is_served else set()
        for number in self.wanted.due({UNIT}, busy, is_current=self.is_current):
            if self.wanted.claim(number, None, None, NO_READERS, lambda *_: "taken"):
                self.wanted.claimed(number)
                self.is_served = True
        self.wanted.plan_retries({UNIT})

    def fail(self, error: Exception) -> None:
        self.is_served = False
        self.wanted.handle_failure(UNIT, error)

    def wait(self, seconds: float) -> None:
        """Advance the clock in small steps until the unit is served, for at most ``seconds``."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s and not self.is_served:
            self.clock.now_s += 0.1
            self.turn()


PASSING: list[Exception] = [
    MemoryError("cannot allocate"),
    OSError(24, "Too many open files"),
    RuntimeError("can't start new thread"),
    Aborted("away"),
    AWAY,
    Fenced(),
    OwnershipInDoubt(),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_a_unit_whose_batch_fails_for_a_cause_that_passes_is_served_again(
    clock: ManualClock, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "read_checkpoint", lambda *_: checkpoint("run"))
    runner = Runner(clock)
    runner.turn()
    runner.fail(error)
    assert (runner.wanted.failed, runner.wanted.failed_units) == ({}, set())
    runner.wait(5.0)
    assert runner.is_served


def test_force_is_for_the_units_of_the_start_and_for_one_time(clock: ManualClock) -> None:
    """A unit assigned later may have been moved to another site in the meantime, on purpose."""
    claims: Any = Claims()
    claimant = Claimant("run", "one", force=True)
    runner = AssignmentManager(make_settings(partitions=4), claimant, claims, lambda *_: False, clock)

    def claim(units: set[int]) -> None:
        for number in runner.due(units, set()):
            assert runner.claim(number, None, None, NO_READERS, lambda *_: "taken")

    assert runner.due(set(), set()) == [], "the group has not assigned any units yet"
    claim({0, 1})
    runner.claimed(0)
    runner.forget(0)
    runner.forget(1)
    claim({0, 1, 2})
    assert claims.by_force == [True, True, False, False, False]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_a_unit_that_cannot_be_taken_for_a_cause_that_passes_is_taken_later(
    clock: ManualClock, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "read_checkpoint", lambda *_: checkpoint("run"))
    runner = Runner(clock)
    runner.claims.outcomes = [error] * 5
    runner.turn()
    assert runner.wanted.failed == {}
    runner.wait(120.0)
    assert runner.is_served


@pytest.mark.parametrize(
    "error",
    [
        UnitStopped("unit 3: its snapshot does not match its checksum"),
        OwnedElsewhere("unit 3 is owned by a spark", checkpoint("other", "spark")),
        KeyError("a defect"),
        RuntimeError("a defect"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_unit_whose_cause_does_not_pass_is_set_aside_for_good(clock: ManualClock, error: Exception) -> None:
    runner = Runner(clock)
    runner.claims.outcomes = [error]
    runner.wait(3600.0)
    assert runner.claims.made == 1
    assert runner.wanted.failed_units == {UNIT}


def test_each_error_belongs_to_one_row_of_the_table() -> None:
    assert cause_of(ValueError()) is CAUSES[-1]
    # A subclass must come before its base class, or it would never be reached.
    for at, cause in enumerate(CAUSES):
        for fault in cause.faults:
            assert not any(issubclass(fault, wider) for before in CAUSES[:at] for wider in before.faults), cause.what


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause.is_transient], ids=lambda cause: cause.what)
def test_waits_double_up_to_a_bound_and_two_runners_do_not_stay_in_step(
    clock: ManualClock, cause: retry_policy.Cause
) -> None:
    one, other = (RetryTracker(Random(run), clock) for run in ("one", "other"))
    waits = [(one.wait_s(UNIT, cause, ""), other.wait_s(UNIT, cause, "")) for _ in range(200)]
    assert cause.first_s is not None
    for at, pair in enumerate(waits):
        plain_s = min(cause.longest_s, cause.first_s * 2 ** min(at, 30))
        assert all(wait_s is not None and JITTER[0] <= wait_s / plain_s <= JITTER[1] for wait_s in pair)
    assert len({wait_s for pair in waits for wait_s in pair}) == 400
    again = RetryTracker(Random("one"), clock)
    assert [again.wait_s(UNIT, cause, "") for _ in range(200)] == [mine for mine, _ in waits]


def test_a_unit_that_fails_again_and_again_waits_longer_though_it_was_served_in_between(clock: ManualClock) -> None:
    runner = Runner(clock)
    runner.turn()
    gaps = []
    for _ in range(7):
        runner.fail(MemoryError())
        failed_s = clock.now_s
        runner.wait(400.0)
        gaps.append(clock.now_s - failed_s)
    assert gaps[0] < 3.2
    assert gaps[-1] > 50.0
    # Once the unit has been served for long enough, the first wait applies again.
    clock.now_s += 61.0
    runner.fail(MemoryError())
    failed_s = clock.now_s
    runner.wait(400.0)
    assert clock.now_s - failed_s < 3.2


def test_a_log_that_is_short_for_a_moment_is_waited_for_and_one_that_stays_short_is_not(clock: ManualClock) -> None:
    runner = Runner(clock)
    runner.claims.outcomes = [LogShort("the log ends at 3")] * 3
    runner.wait(30.0)
    assert runner.is_served
    runner = Runner(clock)
    runner.claims.outcomes = [LogShort("the log ends at 3")] * 1000
    runner.wait(30.0)
    assert runner.wanted.failed_units == {UNIT}
    assert runner.claims.made < 20


def test_a_topic_that_a_broker_does_not_know_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    settings, known = make_settings(partitions=4), False
    facts = {topic: TopicFacts("id", 4) for topic in settings.input_topics}
    monkeypatch.setattr(claim, "topic_facts", lambda *_: facts if known else {})
    monkeypatch.setattr(claim, "read_checkpoint", lambda *_: pytest.fail("the unit is claimed"))
    nothing: Any = None
    with pytest.raises(UnitStopped, match="no longer exists") as raised:
        claim.claim(settings, UNIT, nothing, nothing, Claimant("run", "one"), NO_READERS, None)
    runner = Runner(clock)
    runner.claims.outcomes = [raised.value]
    runner.wait(5.0)
    assert runner.is_served


def test_a_log_that_ends_before_what_was_consumed_is_told_from_one_that_begins_behind_it() -> None:
    settings = make_settings()
    for ends, is_short in (((0, 3), True), ((6, 9), False)):
        stable: Any = SimpleNamespace(get_watermark_offsets=lambda *_, ends=ends, **__: ends)
        readers: Any = SimpleNamespace(stable=stable, settings=settings)
        with pytest.raises(UnitStopped) as raised:
            check_log_range(readers, 0, dict.fromkeys(settings.input_topics, 5))
        assert cause_of(raised.value).is_transient == is_short


@pytest.mark.parametrize(("error", "count"), [(Fenced(), 1), (ClaimLost("run"), 1), (OwnershipInDoubt(), 0)])
def test_only_a_fencing_counts_as_one(clock: ManualClock, error: Exception, count: int) -> None:
    fencings: list[int] = []
    claims: Any = Claims()
    runner = AssignmentManager(
        make_settings(partitions=4),
        Claimant("run", "one"),
        claims,
        lambda *_: False,
        clock,
        fenced=lambda: fencings.append(UNIT),
    )
    runner.handle_failure(UNIT, error)
    assert runner.is_pending(UNIT)
    assert fencings == [UNIT] * count
    why = "another runner may have claimed it" if count else "its input is not as expected"
    assert runner.obstacles()[UNIT].why == f"unit 3: {why}; verifying its owner"


def test_a_unit_that_was_lost_is_told_as_such_and_looked_at_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "read_checkpoint", lambda *_: checkpoint("other"))
    runner = Runner(clock)
    runner.turn()
    runner.fail(Fenced())
    runner.wait(2.0)
    assert runner.wanted.failed == {UNIT: "unit 3: now owned by process two (run other); given up"}
    assert runner.wanted.failed_units == set()
    obstacle = runner.wanted.obstacles()[UNIT]
    assert obstacle.why == runner.wanted.failed[UNIT]
    assert obstacle.retry_s is not None
    runner.is_current = False
    runner.wait(60.0)
    assert runner.wanted.failed, "it may be assigned to the other process by now"
    runner.is_current = True
    runner.wait(60.0)
    assert runner.is_served
    assert runner.wanted.obstacles() == {}


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (RESET_RUN, "unit 3: now without an owner since a reset; given up"),
        (OnTheWay("m", "green").run(), "unit 3: now on its way from green to process; given up"),
    ],
)
def test_a_unit_that_was_lost_to_no_other_runner_names_none(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, run: str, said: str
) -> None:
    monkeypatch.setattr(assignment, "read_checkpoint", lambda *_: checkpoint(run))
    runner = Runner(clock)
    runner.turn()
    runner.fail(Fenced())
    runner.wait(2.0)
    assert runner.wanted.failed == {UNIT: said}


def test_a_failed_claim_does_not_say_that_nothing_was_written(clock: ManualClock) -> None:
    """The claim may have been committed before the state could not be restored."""
    runner = Runner(clock)
    runner.claims.outcomes = [MemoryError("cannot allocate")]
    runner.turn()
    assert runner.wanted.obstacles()[UNIT].why == "unit 3: its claim failed with MemoryError: cannot allocate"


def test_it_is_told_what_a_unit_waits_for_since_when_and_when_it_is_tried_again(clock: ManualClock) -> None:
    runner = Runner(clock)
    runner.turn()
    assert runner.wanted.obstacles() == {}
    runner.fail(MemoryError("cannot allocate"))
    clock.now_s += 0.5
    (obstacle,) = runner.wanted.obstacles().values()
    assert obstacle.why == ("unit 3: a batch failed with MemoryError: cannot allocate; none of it was written")
    assert obstacle.lasts_s == pytest.approx(0.5)
    assert obstacle.retry_s is not None
    assert 0.5 <= obstacle.retry_s <= 2.5
    runner.wanted.forget(UNIT)
    assert runner.wanted.obstacles() == {}
    runner.fail(UnitStopped("unit 3: the buffer is full"))
    assert runner.wanted.obstacles()[UNIT] == Obstacle("unit 3: the buffer is full", 0.0, None)


def test_what_went_wrong_with_a_unit_that_is_others_by_now_is_forgotten(clock: ManualClock) -> None:
    runner = Runner(clock)
    runner.claims.outcomes = [UnitStopped("damaged")]
    for number in runner.wanted.due({UNIT}, set()):
        runner.wanted.claim(number, None, None, NO_READERS, lambda *_: "taken")
    runner.wanted.forget(UNIT)
    runner.wanted.plan_retries(set())
    assert (runner.wanted.failed, runner.wanted.obstacles()) == ({}, {})


# Notices


class Pool:
    """A pool that runs the submitted work when `run` is called."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[..., Any], Any]] = []

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, work, given))
        return future

    def run(self) -> None:
        for future, work, given in self.waiting:
            future.set_result(work(*given))
        self.waiting.clear()


def test_a_notice_is_written_when_it_is_new_now_and_then_and_when_it_is_over(clock: ManualClock) -> None:
    pool: Any = Pool()
    written: list[NotServed] = []
    told = UnitReports(Claimant("run", "one"), pool, written.append, clock)

    def poll(obstacles: dict[int, Obstacle]) -> list[NotServed]:
        written.clear()
        told.poll(obstacles)
        pool.run()
        return list(written)

    assert poll({UNIT: Obstacle("no memory", 0.5, 1.0)}) == []
    (first,) = poll({UNIT: Obstacle("no memory", 3.0, 1.0)})
    assert (first.unit, first.instance, first.why, first.lasts_ms, first.retry_ms) == (
        3,
        "one",
        "no memory",
        3000,
        1000,
    )
    assert poll({UNIT: Obstacle("no memory", 4.0, 1.0)}) == []
    clock.now_s += REPEAT_S
    assert [notice.lasts_ms for notice in poll({UNIT: Obstacle("no memory", 13.0, 1.0)})] == [13_000]
    assert [notice.retry_ms for notice in poll({UNIT: Obstacle("damaged", 14.0, None)})] == [None]
    assert [notice.why for notice in poll({})] == [""]
    assert poll({}) == []


def test_a_slow_kafka_is_not_asked_to_take_a_second_notice_before_the_first(clock: ManualClock) -> None:
    pool: Any = Pool()
    told = UnitReports(Claimant("run", "one"), pool, lambda _notice: None, clock)
    told.poll({UNIT: Obstacle("no memory", 3.0, 1.0)})
    told.poll({UNIT: Obstacle("damaged", 3.0, None)})
    assert len(pool.waiting) == 1


def test_a_notice_of_an_impossible_time_is_passed_over() -> None:
    told = NotServed(unit=0, instance="a", site="process", why="no memory", lasts_ms=10**30)
    assert describe([(encode(told), 1_554_096_460_000)]) == []


def test_status_tells_the_newest_notice_of_each_unit_and_runner() -> None:
    def notice(unit: int, why: str, retry_ms: int | None = 5000, instance: str = "a") -> bytes:
        told = NotServed(unit=unit, instance=instance, site="process", why=why, lasts_ms=60_000, retry_ms=retry_ms)
        return encode(told)

    at_ms = 1_554_096_460_000
    lines = describe(
        [
            (notice(0, "no memory"), at_ms),
            (notice(1, "damaged", None), at_ms),
            (notice(1, "away", instance="b"), at_ms),
            (notice(2, "away"), at_ms),
            (notice(2, ""), at_ms + 1),
            (notice(0, "short"), at_ms + 10_000),
            (b'{"kind":"cancelled","format":1,"move":"m","units":[1]}', at_ms),
            (b"{", at_ms),
            (None, at_ms),
        ]
    )
    assert lines == [
        "unit 0: not served by process a since 2019-04-01T05:26:50Z (reported at 05:27:50Z, retried 5 s later): short",
        "unit 1: not served by process a since 2019-04-01T05:26:40Z (reported at 05:27:40Z, failed): damaged",
        "unit 1: not served by process b since 2019-04-01T05:26:40Z (reported at 05:27:40Z, retried 5 s later): away",
    ]


def test_those_who_move_units_pass_over_notices() -> None:
    assert decode(encode(NotServed(unit=0, instance="a", site="process", why="away"))) is None
