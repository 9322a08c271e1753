"""A batch is written until every point is acknowledged or refused, whatever the database answers."""

# ruff: noqa: D101 - the names of tests, and of the parts of a stand-in, are descriptive enough

from __future__ import annotations

import logging
import queue
from collections.abc import Sequence

import pytest

from db_connector.sinks.points import point_line
from db_connector.sinks.sink import (
    MisconfiguredError,
    RefusedError,
    TooLargeError,
    UnavailableError,
    WriteError,
)
from db_connector.writer import REQUEST_BYTES_MAX, Outcome, StoppedError, Writer, WriterThread
from tests.unit.db_connector.test_contract import FakeInflux, Point, joined


class Time:
    """A clock that advances only while code waits. It stops the process after ``waits_max`` waits."""

    def __init__(self, waits_max: int = 10_000) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self._waits_max = waits_max

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.waits.append(seconds)
        return len(self.waits) > self._waits_max

    def clock(self) -> float:
        return self.now


def writer_to(database: FakeInflux, time: Time) -> Writer:
    return Writer(database, backoff_min_s=0.2, backoff_max_s=10.0, wait=time.wait, clock=time.clock)


def lines(count: int) -> list[bytes]:
    return [point_line(joined(twice_ns=2_000_000 * n), "joined", "ms") for n in range(count)]


def at(*numbers: int) -> set[int]:
    return {number * 1_000_000 for number in numbers}


def refusing(times_ns: set[int], reason: str = "bad") -> FakeInflux:
    database = FakeInflux()

    def refuses(point: Point) -> str:
        return reason if point.time_ns in times_ns else ""

    database.refuses = refuses
    return database


def test_a_batch_is_sent_in_one_request() -> None:
    database = FakeInflux()
    assert writer_to(database, Time()).write(lines(5_000)) == []
    assert database.requests == [5_000]
    assert len(database.stored) == 5_000


def test_an_empty_batch_asks_nothing_of_the_database() -> None:
    database = FakeInflux()
    assert writer_to(database, Time()).write([]) == []
    assert database.requests == []


def test_a_batch_of_many_bytes_is_sent_in_several_requests() -> None:
    database = FakeInflux()
    big = [
        point_line(joined(twice_ns=2_000_000 * n, identity="i" * (REQUEST_BYTES_MAX // 20)), "joined", "ms")
        for n in range(45)
    ]
    assert writer_to(database, Time()).write(big) == []
    assert database.requests == [19, 19, 7]
    assert len(database.stored) == 45


def test_a_database_is_unavailable_from_a_request_without_answer_until_any_answer() -> None:
    class Returning(FakeInflux):
        def write(self, given: Sequence[bytes]) -> None:
            seen.append(writer.is_unavailable)
            if len(seen) < 3:
                raise UnavailableError("away")
            super().write(given)

    seen: list[bool] = []
    database = Returning()
    database.refuses = refusing(at(0)).refuses
    writer = writer_to(database, Time())
    assert len(writer.write(lines(1))) == 1
    assert (seen, writer.failures, writer.is_unavailable) == ([False, True, True], 2, False)


@pytest.mark.parametrize("refused", [{0}, {99}, {50}, {3, 4}, {0, 99}, {1, 17, 18, 55, 98}])
def test_refused_points_are_found_and_all_others_written(refused: set[int]) -> None:
    database = refusing(at(*refused))
    refusals = writer_to(database, Time()).write(lines(100))
    assert {refusal.index for refusal in refusals} == refused
    assert all("bad dropped=1" in refusal.reason for refusal in refusals)
    assert {point.time_ns for point in database.stored} == at(*(set(range(100)) - refused))


def test_the_others_are_written_also_where_a_refused_request_wrote_nothing() -> None:
    class AllOrNothing(FakeInflux):
        def write(self, given: Sequence[bytes]) -> None:
            before = dict(self.stored)
            try:
                super().write(given)
            except RefusedError:
                self.stored = before
                raise

    database = AllOrNothing()
    database.refuses = refusing(at(7)).refuses
    assert [refusal.index for refusal in writer_to(database, Time()).write(lines(64))] == [7]
    assert len(database.stored) == 63


def test_a_search_takes_few_requests() -> None:
    database = refusing(at(1_234))
    writer_to(database, Time()).write(lines(5_000))
    assert len(database.requests) <= 2 * 13 + 1


def test_a_conflict_of_all_points_takes_one_request() -> None:
    database = FakeInflux()
    database.types["joined", "result"] = str
    refusals = writer_to(database, Time()).write(lines(1_000))
    assert [refusal.index for refusal in refusals] == list(range(1_000))
    assert "field type conflict" in refusals[0].reason
    assert database.requests == [1_000]


def test_reasons_that_name_one_point_are_asked_for_one_by_one() -> None:
    database = refusing(at(0, 1, 2, 3), "key contains invalid unicode")
    refusals = writer_to(database, Time()).write(lines(4))
    assert len(refusals) == 4
    assert database.requests.count(1) == 4


def test_a_request_that_is_too_large_is_halved() -> None:
    class Narrow(FakeInflux):
        def write(self, given: Sequence[bytes]) -> None:
            if len(given) > 10:
                raise TooLargeError("413")
            super().write(given)

    database = Narrow()
    assert writer_to(database, Time()).write(lines(64)) == []
    assert len(database.stored) == 64


def test_a_single_point_that_is_too_large_is_refused() -> None:
    database = FakeInflux()
    database.failures = [TooLargeError("too large")]
    assert [refusal.reason for refusal in writer_to(database, Time()).write(lines(1))] == ["too large"]


def test_a_single_point_that_a_gateway_finds_too_large_is_sent_again() -> None:
    database, time = FakeInflux(), Time()
    database.failures = [TooLargeError("413", is_own=False)] * 9
    assert writer_to(database, time).write(lines(1)) == []
    assert len(database.stored) == 1


@pytest.mark.parametrize("trouble", [UnavailableError("away"), MisconfiguredError("no such database")])
def test_the_wait_between_attempts_doubles_up_to_its_cap(trouble: WriteError) -> None:
    database, time = FakeInflux(), Time()
    database.failures = [trouble] * 9
    assert writer_to(database, time).write(lines(3)) == []
    assert time.waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    assert len(database.stored) == 3


def test_the_back_off_restarts_after_a_success() -> None:
    database, time = FakeInflux(), Time()
    writer = writer_to(database, time)
    for _ in range(2):
        database.failures = [UnavailableError("away")] * 2
        writer.write(lines(1))
    assert time.waits == [0.2, 0.4, 0.2, 0.4]


def test_the_database_may_ask_for_a_longer_wait() -> None:
    database, time = FakeInflux(), Time()
    database.failures = [
        UnavailableError("429", 30.0),
        UnavailableError("429", 0.0),
        UnavailableError("429", 1e9),
    ]
    writer_to(database, time).write(lines(1))
    assert time.waits == [30.0, 0.4, 300.0]


def test_trouble_in_the_middle_of_a_search_loses_nothing() -> None:
    class Flaky(FakeInflux):
        calls = 0

        def write(self, given: Sequence[bytes]) -> None:
            self.calls += 1
            if self.calls % 3 == 2:
                raise UnavailableError("away")
            super().write(given)

    database = Flaky()
    database.refuses = refusing(at(10, 40)).refuses
    assert {refusal.index for refusal in writer_to(database, Time()).write(lines(50))} == {10, 40}
    assert len(database.stored) == 48


def test_an_operators_error_never_refuses_a_point_and_is_logged_as_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = FakeInflux()
    database.failures = [MisconfiguredError("HTTP 404: database not found; create the database")] * 3
    assert writer_to(database, Time()).write(lines(2)) == []
    reports = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(reports) == 1
    assert "create the database" in reports[0].getMessage()


def test_a_long_outage_is_logged_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    database, time = FakeInflux(), Time()
    database.failures = [UnavailableError("away")] * 40
    writer_to(database, time).write(lines(1))
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert 2 <= len(warnings) <= time.now / 10 + 1
    assert "again" in caplog.records[-1].getMessage()


def test_the_end_of_the_process_ends_the_waiting() -> None:
    database, time = FakeInflux(), Time(waits_max=3)
    database.failures = [UnavailableError("away")] * 100
    with pytest.raises(StoppedError):
        writer_to(database, time).write(lines(1))
    assert len(time.waits) == 4
    assert database.stored == {}


class Batch:
    def __init__(self, content: list[bytes]) -> None:
        self.lines = content


def awaited(thread: WriterThread[Batch]) -> Outcome[Batch]:
    outcome = thread.outcome(30.0)
    assert outcome is not None
    return outcome


def test_the_thread_gives_outcomes_in_the_order_of_the_batches() -> None:
    database = refusing(at(1))
    thread: WriterThread[Batch] = WriterThread(writer_to(database, Time()))
    batches = [Batch(lines(count)) for count in (1, 2, 3)]
    for batch in batches:
        thread.submit(batch)
    outcomes = [awaited(thread) for _ in batches]
    assert [outcome.batch for outcome in outcomes] == batches
    assert all(outcome.written and outcome.acknowledged_ns > 0 for outcome in outcomes)
    assert [len(outcome.refusals) for outcome in outcomes] == [0, 1, 1]
    assert thread.in_flight == 0
    assert thread.outcome(0) is None


class Probed(FakeInflux):
    """Records each probe, and is unavailable for the first ``away`` requests."""

    def __init__(self, away: int) -> None:
        super().__init__()
        self.failures = [UnavailableError("no answer from http://nowhere")] * away
        self.probes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def probe(self) -> None:
        self.probes.put(None)
        super().probe()


def test_a_database_that_accepts_no_points_is_reported_before_there_is_a_point(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    database, time = Probed(away=2), Time()
    writer = Writer(database, backoff_min_s=0.001, backoff_max_s=0.001, wait=time.wait, clock=time.clock)
    thread: WriterThread[Batch] = WriterThread(writer)
    # Such a batch occurs at the end of an empty partition. It has no points, so its outcome says nothing about the
    # database.
    thread.submit(Batch([]))
    for _ in range(3):
        database.probes.get(timeout=30)
    thread.submit(Batch(lines(1)))
    assert [awaited(thread).written for _ in range(2)] == [True, True]
    reports = [record.getMessage() for record in caplog.records]
    assert len(reports) == 2
    assert reports[0].startswith("InfluxDB has not accepted results")
    assert reports[0].endswith("no answer from http://nowhere")
    assert reports[1].startswith("InfluxDB accepts results again")
    assert (writer.failures, writer.is_unavailable) == (2, False)


def test_a_point_does_not_wait_for_the_next_time_that_the_database_is_asked() -> None:
    database, time = Probed(away=1), Time()
    writer = Writer(database, backoff_min_s=3600, backoff_max_s=3600, wait=time.wait, clock=time.clock)
    thread: WriterThread[Batch] = WriterThread(writer)
    database.probes.get(timeout=30)
    thread.submit(Batch(lines(1)))
    assert awaited(thread).written
    assert (len(database.stored), database.probes.empty()) == (1, True)


def test_a_database_that_refuses_to_write_nothing_has_answered() -> None:
    database = FakeInflux()
    database.failures = [RefusedError("writing requires points")]
    writer = writer_to(database, Time())
    assert writer.probe() is None
    assert not writer.is_unavailable


def test_the_thread_marks_what_was_given_up() -> None:
    database = FakeInflux()
    database.failures = [UnavailableError("away")] * 100
    thread: WriterThread[Batch] = WriterThread(writer_to(database, Time(waits_max=2)))
    thread.submit(Batch(lines(1)))
    assert not awaited(thread).written


def test_a_fault_in_the_thread_reaches_its_owner() -> None:
    class Broken(FakeInflux):
        def write(self, given: Sequence[bytes]) -> None:
            raise ZeroDivisionError(given)

    thread: WriterThread[Batch] = WriterThread(writer_to(Broken(), Time()))
    thread.submit(Batch(lines(1)))
    with pytest.raises(ZeroDivisionError):
        thread.outcome(30.0)
