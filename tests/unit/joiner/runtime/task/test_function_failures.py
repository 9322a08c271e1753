"""Does a runner report failures of a joining function in its log, checkpoint and metrics?"""

# ruff: noqa: SLF001 - the tests drive a process step by step

from __future__ import annotations

import logging
from typing import Any

import pytest

from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.model import Checkpoint
from joiner.runtime.task.function_failures import FailureLog, Failures
from joiner.runtime.task.unit import Unit
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, GAP, POWER, batch, make_settings, record
from tests.unit.joiner.runtime.runner_parts import idle_loop, make_task, serve
from tests.unit.joiner.runtime.test_metrics import Transactions as QuietTransactions

FAILS = {**POWER, "function": "tests.unit.joiner.joining_functions:raises"}
FIRST = "ValueError: no such machine"


class Transactions(QuietTransactions):
    """Transactions that keep their checkpoints."""

    def __init__(self) -> None:
        self.written: list[Checkpoint] = []

    def commit(self, messages: Any, checkpoint: Any, snapshot: Any) -> SnapshotPlace | None:
        place = super().commit(messages, checkpoint, snapshot)
        self.written.append(checkpoint)
        return place


class Process:
    """A plain process with one unit, whose input the test provides."""

    def __init__(self, *joins: dict[str, Any], **sections: Any) -> None:
        self.settings = make_settings(*joins, metrics={"listen": 0}, **sections)
        loop: Any = idle_loop(self.settings)
        transactions: Any = Transactions()
        self.loop, self.tasks, self.transactions = loop, loop.tasks, transactions
        start = {DATA: 0}
        self.checkpoint = Checkpoint(1, "app", 0, "run", "one", "process", start, start, {}, 1, "", {}, {}, {})
        unit = Unit(self.settings, 0, start)
        self.owned = make_task(unit, transactions=transactions, checkpoint=self.checkpoint, snapshot_at_s=1e18)
        serve(loop, 0, self.owned)
        self.end = 0

    def turn(self, *quantities: str) -> None:
        """Process a batch of one record per quantity, 1 ms apart."""
        sent = [record(at, name, BASE_MS + at) for at, name in enumerate(quantities, self.end)]
        self.end += len(sent)
        self.tasks._pending.add(Read({0: {DATA: batch(sent)}}, {}, []), {0})
        self.tasks._turn(0, self.owned)
        self.tasks._commits.finish(0, self.owned)

    def value(self, what: str) -> float:
        registry = self.loop._telemetry.registry
        return float(registry.get_sample_value(f"lsb_joiner_{what}_total", {"unit": "0"}))

    def failures(self, join: str = "power") -> float | None:
        registry = self.loop._telemetry.registry
        found: float | None = registry.get_sample_value(
            "lsb_joiner_function_failures_total", {"unit": "0", "join": join}
        )
        return found


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_a_function_that_always_raises_is_told_of_in_log_progress_and_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process(FAILS, GAP)
    process.turn("speed", "torque", "speed", "torque")
    (told,) = warnings(caplog)
    assert "join 'power'" in told
    assert FIRST in told
    assert "joining_functions.py line" in told
    assert "machine.rejected" in told
    counts = process.transactions.written[-1].counts
    assert counts["pairs"] == counts["failed"] == counts["power:failed"] == 3
    assert process.failures() == 3
    assert process.failures("gap") is None


def test_failures_of_later_batches_are_added_up_and_no_second_line_follows_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process(FAILS)
    for _ in range(5):
        process.turn("speed", "torque")
    assert len(warnings(caplog)) == 1
    assert process.transactions.written[-1].counts["failed"] == 9
    assert process.failures() == 9


def test_the_next_owner_goes_on_with_the_count_of_the_progress_record() -> None:
    process = Process(FAILS)
    process.turn("speed", "torque", "speed")
    last = process.transactions.written[-1]
    again = Process(FAILS)
    replayed = Unit(again.settings, 0, {DATA: 0})
    sent = [record(at, name, BASE_MS + at) for at, name in enumerate(("speed", "torque", "speed"))]
    replayed.apply({DATA: batch(sent)}, {DATA: 3}, silent=True)
    again.owned.unit, again.owned.checkpoint = replayed, last
    again.tasks._metrics.claimed(last, 0.1)
    again.end = 3
    again.turn("torque")
    assert again.transactions.written[-1].counts["failed"] == 3
    assert again.failures() == 1


def test_the_log_and_the_counts_tell_failed_rows_from_failed_pairs(caplog: pytest.LogCaptureFixture) -> None:
    align = {"name": "table", "driver": "torque", "columns": {"speed": {}}}
    function = "tests.unit.joiner.joining_functions:two_of_row"
    process = Process(POWER, align=[align | {"function": function}])
    process.turn("speed", "torque", "speed", "torque", "speed")
    (told,) = warnings(caplog)
    assert f"align 'table': the function {function} failed for 2 rows of unit 0" in told
    assert "Each such row becomes a dead letter" in told
    counts = process.transactions.written[-1].counts
    assert (counts["rows"], counts["failed_rows"], counts["table:failed"]) == (2, 2, 2)
    assert "failed" not in counts
    assert process.failures("table") == 2
    assert process.value("rows") == 0
    assert process.value("pairs") == counts["pairs"] > 0


def test_the_log_says_how_many_failed_since_the_last_line_and_with_what_now(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock(0.0)
    log = FailureLog(make_settings(FAILS), clock)
    log.note(0, {"power": Failures(2, "first")})
    log.note(1, {"power": Failures(30, "second")})
    clock.now_s = 59.0
    log.note(1, {"power": Failures(4, "third")})
    assert len(warnings(caplog)) == 1
    clock.now_s = 61.0
    log.note(0, {"power": Failures(5, "fourth")})
    assert "39 more pairs" in warnings(caplog)[1]
    assert "fourth" in warnings(caplog)[1]
    log.note(0, {"power": Failures(6, "fifth")})
    log.close()
    log.close()
    assert len(warnings(caplog)) == 3
    assert "6 more pairs" in warnings(caplog)[2]


def test_the_log_counts_a_single_failure_in_the_singular(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    log = FailureLog(make_settings(FAILS), clock)
    log.note(0, {"power": Failures(1, "first")})
    assert "failed for 1 pair of unit 0: first. Each such pair becomes a dead letter" in warnings(caplog)[0]
    clock.now_s = 61.0
    log.note(0, {"power": Failures(1, "second")})
    assert "failed for 1 more pair: second" in warnings(caplog)[1]
    log.note(0, {"power": Failures(1, "third", of_rows=True)})
    log.close()
    assert "failed for 1 more row: third. Each such row becomes a dead letter" in warnings(caplog)[2]


def test_an_error_that_says_too_much_or_no_text_is_told_in_a_line() -> None:
    one = Failures.of(1, "no such file:\n\udcff.csv " + "x" * 3_000_000, "f.py line 3")
    assert len(one.first) < 400
    assert one.first.startswith("no such file: \\udcff.csv xxx")
    assert one.first.endswith("... (f.py line 3)")


def test_a_value_that_is_no_number_is_a_failure_without_a_place() -> None:
    unit = Unit(make_settings({**POWER, "function": "tests.unit.joiner.joining_functions:words"}), 0, {DATA: 0})
    effects = unit.apply({DATA: batch([record(0, "speed", BASE_MS), record(1, "torque", BASE_MS)])}, {DATA: 2})
    assert effects.failed_pairs == {"power": Failures(1, "it returned <U3 values, not real numbers")}
