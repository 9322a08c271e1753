"""The joiner's progress lines, including the last one, and the exit status of `make status`."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import pytest

from joiner.runtime.task.function_failures import Failures
from joiner.runtime.telemetry.throughput import Throughput
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.task.test_function_failures import Process

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "joiner")


def last_line(caplog: pytest.LogCaptureFixture) -> str:
    return caplog.records[-1].getMessage()


def test_the_last_line_of_a_process_says_that_its_units_keep_what_they_held(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process()
    process.turn("speed", "torque")
    process.tasks.report(process.loop.finish_all(), last=True)
    assert last_line(caplog) == (
        "ended: 2 records in, 1 results out; units [0] continue from Kafka on the next start, with 2 records held"
    )


def test_a_process_without_units_says_so_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    Throughput(ManualClock()).report({}, last=True)
    assert last_line(caplog) == "ended: 0 records in, 0 results out; no units were served here at the end"


def test_pairs_and_rows_whose_function_failed_are_no_results(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Throughput(ManualClock())
    metrics.count(10, 2, {"power": Failures(3, "first"), "steps": Failures(1, "first", of_rows=True)})
    metrics.report({1: 5}, last=True)
    assert "10 records in, 2 results out, functions failed for 4 pairs or rows; units [1]" in last_line(caplog)


@pytest.mark.parametrize(("status", "ends_with"), [(0, 0), (1, 0), (3, 2)])
def test_servers_that_are_down_are_no_error_of_make(status: int, ends_with: int) -> None:
    command = ["make", "--no-print-directory", "-o", "setup", "status", f"PY=sh -c 'echo kafka stopped; exit {status}'"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (ends_with, "kafka stopped\n")
    assert bool(done.stderr) == (ends_with != 0)
