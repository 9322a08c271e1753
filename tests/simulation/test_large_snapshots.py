"""A snapshot that is written in separate, slow transactions delays only its own unit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from broker.wire.arrow.rows import encode_columns
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import UnitTransactions
from joiner.runtime.membership.consumer_group import GroupMembership
from tests.simulation import pool
from tests.simulation.feed import BASE_MS
from tests.simulation.memory_kafka import MemoryKafka
from tests.simulation.stage import on_stage
from tests.simulation.test_forgotten import SETTINGS, create_topics, feed
from tests.simulation.verdict import committed_checkpoint, judge, stable_ends
from tests.simulation.world import SimulatedProcess, World

WAITS = 1000
WAIT_S = 0.1
"""The duration of each wait. The waits of one snapshot add up to more than a member may stay away from its group."""
AWAY_S = 60.0
"""The longest allowed time between two polls of a member. A turn of its loop may take seconds here."""
BATCHES = 60


ROWS = 100
"""The rows in an Arrow message: as many as the process joins at once."""
MESSAGES = 10
"""The Arrow messages in a batch. The first read returns all of them, but the process joins them one at a time."""


def feed_rows(kafka: MemoryKafka, batch: int) -> None:
    """Write many Arrow messages at once."""
    for message in range(MESSAGES):
        first = MESSAGES * ROWS * batch + ROWS * message
        numbers = range(first, first + ROWS)
        quantities = ["speed" if number % 2 else "torque" for number in numbers]
        times = [BASE_MS + number for number in numbers]
        value = encode_columns(["0"] * ROWS, quantities, times, [2.0] * ROWS, [f"r{number}" for number in numbers])
        kafka.append("machine.data", 0, None, value)


class Slow:
    """Feeds a process for minutes while it writes one snapshot after another."""

    def __init__(self, data_format: str) -> None:
        is_json = data_format == "json"
        update = (
            {"snapshot_interval": 20 * 10**9} if is_json else {"snapshot_records": 1, "batch_records_max": ROWS // 10}
        )
        application = SETTINGS.application.model_copy(update=update)
        topics = SETTINGS.topics.model_copy(update={"data_format": data_format})
        self.settings = SETTINGS.model_copy(update={"application": application, "topics": topics})
        self._feed, self._most = (feed, BATCHES) if is_json else (feed_rows, 1)
        self.world = World(1)
        self.world.director = self
        self.world.snapshot_bytes_max = 1
        create_topics(self.world.kafka)
        self._process: SimulatedProcess | None = None
        self._batches = 0
        self.difference = "not through"

    def step(self) -> None:
        """See `Director`."""
        if self._process is None:
            self._process = self.world.start(self.settings)
        kafka = self.world.kafka
        if self._batches < self._most and self.world.clock_s >= 1000 + self._batches:
            self._batches += 1
            self._feed(kafka, self._batches)
        checkpoint = committed_checkpoint(kafka, self.settings, 0)
        is_through = checkpoint is not None and checkpoint.offsets == stable_ends(kafka, self.settings, 0)
        if self._batches == self._most and is_through:
            self.difference = judge(kafka, self.settings)[0]
            self.world.end()

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        raise AssertionError(f"{process.run} ended with {status!r}")

    def complain(self, text: str) -> None:
        """See `Director`."""
        raise AssertionError(text)


@pytest.mark.parametrize("data_format", ["json", "arrow"])
def test_who_writes_a_large_snapshot_for_long_does_not_stay_away_from_its_group(
    data_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, polled_s, written = Slow(data_format), [], []
    poll, write = GroupMembership.poll, UnitTransactions._write_apart  # noqa: SLF001 - slowed down here

    def noting(membership: GroupMembership) -> Any:
        polled_s.append(play.world.clock_s)
        return poll(membership)

    def slowly(transactions: UnitTransactions, *arguments: Any) -> SnapshotPlace:
        for _ in range(WAITS):
            play.world.link.pass_time(WAIT_S)
        written.append(write(transactions, *arguments))
        return written[-1]

    # All work of a pool runs in separate threads.
    monkeypatch.setattr(pool, "_BESIDE", 1.0)
    monkeypatch.setattr(GroupMembership, "poll", noting)
    monkeypatch.setattr(UnitTransactions, "_write_apart", slowly)
    with on_stage(play.world):
        play.world.play()
    assert len(written) > 1
    assert max(later - earlier for earlier, later in pairwise(polled_s)) < AWAY_S
    assert play.difference == ""
