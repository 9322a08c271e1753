"""What do the copies tell about partitions without a valid committed offset?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from broker.kafka.topics import TopicFacts
from joiner.runtime.kafka import clients
from joiner.runtime.repartition import prior
from joiner.runtime.repartition.prior import CopyScans, Prior, RepartitionError, Stopped, read_prior
from joiner.runtime.repartition.progress import Progress, encode_progress
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.repartition.test_copies import SPEED

TARGET = "lsb.plant.repartition"
FACTS = {"plant": TopicFacts("source-id", 3), TARGET: TopicFacts("target-id", 2)}
VALID = 5, encode_progress(Progress("source-id", "target-id", "$.id", 0))
FORMER = 6, encode_progress(Progress("source-id", "former", "$.id", 0))
SET_BY_HAND = 4, ""
MISSING = -1001, ""


class Log:
    """The committed offsets of three partitions, and the headers of the messages in the repartition topic's two."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *logs: list[bytes | None]) -> None:
        self.logs, self.committed = logs or ([], []), [VALID, VALID, VALID]
        self.read: list[tuple[int, int]] = []
        self.scans = CopyScans()
        self.is_over = False
        self.looks, self.looks_at_stop = 4, -math.inf
        """How often the stable end is asked for until the transaction before the last message ends, and what is left of
        that when the process is stopped.
        """
        monkeypatch.setattr(prior, "make_reader", lambda *_, **more: SimpleNamespace(close=lambda: None, **more))
        monkeypatch.setattr(prior, "committed_offsets", self._offsets)
        monkeypatch.setattr(prior, "log_range", self._range)
        monkeypatch.setattr(clients, "log_ends", self._ends)
        monkeypatch.setattr(prior, "read_to_end", self._read)

    def _offsets(self, *_: Any) -> list[TopicPartition]:
        return [TopicPartition("plant", number, *one) for number, one in enumerate(self.committed)]

    def _range(self, consumer: Any, _topic: str, partition: int) -> tuple[int, int]:
        # For the read-committed consumer, the last message is behind an open transaction.
        is_stable = hasattr(consumer, "isolation_level")
        self.looks -= not is_stable
        return 0, max(0, len(self.logs[partition]) - (not is_stable and self.looks > 0))

    def _ends(self, consumer: Any, topics: Iterable[str], partition: int) -> dict[str, int]:
        return {topic: self._range(consumer, topic, partition)[1] for topic in topics}

    def _read(self, _reader: Any, _clock: Any, _topic: str, partition: int, low: int, high: int) -> Iterator[Any]:
        for number in range(low, high):
            self.read.append((partition, number))
            header = self.logs[partition][number]
            headers = None if header is None else [("lsb-origin", header)]
            yield SimpleNamespace(headers=lambda headers=headers: headers)

    def found(self, facts: dict[str, TopicFacts] = FACTS) -> dict[tuple[str, int], Prior]:
        settings = make_settings(stream=[SPEED], partitions=2)
        return read_prior(settings, facts, ManualClock(), self._is_over, self.scans)

    def _is_over(self) -> bool:
        return self.is_over or self.looks < self.looks_at_stop


def test_copies_are_read_only_if_an_offset_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, [b"plant/0/3"] * 9, [b"plant/0/4"] * 9)
    log.committed = [VALID, SET_BY_HAND, VALID]
    assert log.found() == {}
    assert log.read == [(0, 0)]


def test_the_first_and_last_original_are_found_whatever_else_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, [None, b"plant/0/7", b"plant/2/1", b"other/0/99"], [b"?", b"plant/0/5", b"plant/0/9"])
    log.committed = [MISSING, MISSING, FORMER]
    assert log.found() == {
        ("plant", 0): Prior(*MISSING, 5, 9, has_begun=True),
        ("plant", 1): Prior(*MISSING, None, None, has_begun=True),
        ("plant", 2): Prior(*FORMER, 1, 1, has_begun=True),
    }


@pytest.mark.parametrize(
    ("committed", "begun"),
    [([MISSING] * 3, [False]), ([FORMER, MISSING, MISSING], [False]), ([VALID, MISSING, MISSING], [True])],
)
def test_copying_of_a_topic_has_begun_if_there_is_an_offset_or_a_copy_of_any_partition(
    monkeypatch: pytest.MonkeyPatch, committed: list[tuple[int, str]], begun: list[bool]
) -> None:
    log = Log(monkeypatch)
    log.committed = committed
    assert log.found()["plant", 2] == Prior(*MISSING, None, None, *begun)
    log.logs[0].append(b"plant/0/3")
    assert log.found()["plant", 2] == Prior(*MISSING, None, None, has_begun=True)


def test_a_transaction_that_does_not_end_is_named_with_the_way_to_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be copies behind it. Without them, their originals would be copied again."""
    log = Log(monkeypatch, [b"plant/0/7"] * 9)
    log.committed = [MISSING] * 3
    log.looks = 10_000
    command = rf"kafka-transactions\.sh .* abort --topic {TARGET} --partition 0 --start-offset 8"
    with pytest.raises(RepartitionError, match=rf"{TARGET} \[0\] cannot be read: .* for 30 s.* offset 8\. .*{command}"):
        log.found()
    log.looks, log.looks_at_stop = 10_000, 9_990
    with pytest.raises(Stopped):
        log.found()


def test_copies_of_another_topic_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, [], [None, b"other/0/1", b"plant/0/1"])
    with pytest.raises(RepartitionError, match=f"{TARGET} holds copies of other, not of plant: .*another name"):
        log.found()


def test_copies_of_an_earlier_topic_of_the_same_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka has deleted the offsets along with the topic."""
    log = Log(monkeypatch, [b"plant/0/7/former-id"], [None, b"plant/1/2/source-id"])
    log.committed = [MISSING, MISSING, MISSING]
    for _ in range(2):
        with pytest.raises(RepartitionError, match=f"plant was deleted and recreated.*deletes {TARGET}"):
            log.found()
    log.logs = ([b"plant/0/7/source-id"], [])
    assert log.found(FACTS | {TARGET: TopicFacts("another-id", 2)})["plant", 0] == Prior(*MISSING, 7, 7, has_begun=True)


def test_each_copy_is_read_once_however_often_copying_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, [b"plant/0/7", b"plant/1/3"], [b"plant/0/8"])
    log.committed = [MISSING, VALID, MISSING]
    first = log.found()
    log.read.clear()
    assert log.found() == first
    assert log.read == []
    log.logs[1].append(b"plant/2/5")
    assert log.found() == {
        ("plant", 0): Prior(*MISSING, 7, 8, has_begun=True),
        ("plant", 2): Prior(*MISSING, 5, 5, has_begun=True),
    }
    assert log.read == [(1, 1)]


def test_reading_ends_when_the_process_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, [b"plant/0/7"] * 9)
    log.is_over = True
    with pytest.raises(Stopped):
        log.found()
