"""A batch that fails unexpectedly: none of it is written, nothing is lost, and the other units continue."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.failing_joiner import STEPS
from tests.integration.joiner_application import PARTITIONS, Application, application, seeded_entries
from tests.integration.joiner_process import Joiner
from tests.integration.services import wait_until
from tests.long import rest_long


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path, application='snapshot_interval = "200ms"\nsnapshot_records = 50')


def fail_once(app: Application, step: str, error: str) -> tuple[Joiner, int]:
    """Start a joiner and wait until the fifth arrival at a step has failed. Return the joiner and the failed unit."""
    app.create_topics()
    failing = app.start(module="tests.integration.failing_joiner", LSB_FAIL=f"{step}:5:{error}")
    failing.wait_for_units()
    seeds = itertools.count(60)

    def has_failed() -> bool:
        app.produce(seeded_entries(next(seeds), 150))
        return "a batch failed" in failing.text()

    wait_until(has_failed, "a batch fails")
    failed = failing.wait_for(rf"unit (\d+): a batch failed with {error}: '?cannot allocate'?; none of it was")
    return failing, int(failed[1])


@pytest.mark.parametrize("step", rest_long(*STEPS))
def test_a_batch_that_fails_is_not_half_written_and_the_others_go_on(app: Application, step: str) -> None:
    failing, unit = fail_once(app, step, "KeyError")
    ends = app.ends()

    def others_are_through() -> bool:
        through = {number for number, checkpoint in app.checkpoints().items() if checkpoint.offsets == ends[number]}
        return through == set(range(PARTITIONS)) - {unit}

    wait_until(others_are_through, "the other units have consumed all")
    # The status command reports it as long as the process is running.
    wait_until(lambda: f"unit {unit}: not served by process" in app.command("status").stdout, "status reports the unit")
    assert "failed): " in app.command("status").stdout
    assert failing.stop() == 1
    after = app.start()
    app.wait_until_through()
    assert after.stop() == 0
    app.verify()


@pytest.mark.parametrize("step", rest_long(*STEPS))
def test_a_unit_whose_batch_ran_out_of_memory_recovers_by_itself(app: Application, step: str) -> None:
    failing, unit = fail_once(app, step, "MemoryError")
    failing.wait_for(rf"unit {unit}: going back to its last commit, retrying in")
    app.wait_until_through()
    assert failing.stop() == 0
    app.verify()


def test_the_other_units_go_on_while_one_is_rebuilt_and_a_stop_does_not_wait_for_it(app: Application) -> None:
    app.create_topics()
    first = app.start()
    app.produce(seeded_entries(60, 600))
    app.wait_until_through()
    first.kill()
    second = app.start(module="tests.integration.failing_joiner", LSB_HOLD="0")
    second.wait_for_units(PARTITIONS - 1)
    app.produce(seeded_entries(61, 600))
    ends = app.ends()

    def others_are_through() -> bool:
        checkpoint = app.checkpoints()
        return all(
            number in checkpoint and checkpoint[number].offsets == ends[number] for number in range(1, PARTITIONS)
        )

    wait_until(others_are_through, "the other units have consumed all")
    assert second.stop() == 0
    # The claim was cancelled, not abandoned after a timeout.
    assert "unit 0: claim cancelled, because the unit was revoked or this process is stopping" in second.text()
    after = app.start()
    app.wait_until_through()
    assert after.stop() == 0
    app.verify()
