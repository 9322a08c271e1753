"""A batch that fails in an unforeseen way: nothing of it is written, nothing is lost, the other units go on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.failing_joiner import STEPS
from tests.integration.joiner_application import PARTITIONS, Application, application, seeded_entries
from tests.integration.services import wait_until


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path, application='snapshot_interval = "200ms"\nsnapshot_records = 50')


@pytest.mark.parametrize("step", STEPS)
def test_a_batch_that_fails_is_not_half_written_and_the_others_go_on(app: Application, step: str) -> None:
    app.create_topics()
    failing = app.start(module="tests.integration.failing_joiner", LSB_FAIL=f"{step}:5")
    failing.wait_for_units()
    seeds = itertools.count(60)

    def has_failed() -> bool:
        app.produce(seeded_entries(next(seeds), 150))
        return "a batch failed" in failing.text()

    wait_until(has_failed, "a batch fails")
    failed = failing.wait_for(r"unit (\d+): a batch failed with MemoryError: cannot allocate; nothing of it was")
    ends = app.ends()

    def others_are_through() -> bool:
        through = {unit for unit, progress in app.progress().items() if progress.offsets == ends[unit]}
        return through == set(range(PARTITIONS)) - {int(failed[1])}

    wait_until(others_are_through, "the other units have consumed all")
    assert failing.stop() == 1
    after = app.start()
    app.wait_until_through()
    assert after.stop() == 0
    app.verify()
