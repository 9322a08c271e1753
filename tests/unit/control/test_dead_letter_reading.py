"""Are dead letters followed whatever happens to their topic, and is one that is gone told from one that is there?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.topics import TopicFacts
from control.facts import dead_letter_reading as letter_reading
from control.facts import dead_letters as letters
from control.facts.dead_letter_reading import LetterGone, LetterReading, read_message
from control.facts.dead_letters import DeadLetterIndex
from joiner.runtime.kafka.clients import EOF_CODE
from tests.manual_clock import ManualClock
from tests.unit.control.letters_made import letter_text
from tests.unit.joiner.runtime.joiner_inputs import make_settings

SETTINGS = make_settings(partitions=2)
TOPIC = SETTINGS.topics.rejected


class Kafka:
    """The topic in memory, as the clients show it. ``logs``: by partition, (append time, value), or None for a marker.

    ``lows``: the first offset of each partition. ``topic_id``: an empty string if there is no topic.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.topic_id = ""
        self.logs: list[list[Any]] = []
        self.lows: list[int] = []
        self.places: dict[int, int] = {}
        self.eof = set[int]()
        self.frozen = set[int]()
        """Partitions from which nothing arrives."""
        self.errors: list[KafkaError] = []
        self.consumers = 0
        self.after_round: Callable[[], None] = lambda: None

    def create(self, topic_id: str = "first", partitions: int = 2) -> None:
        self.topic_id = topic_id
        self.logs, self.lows = [[] for _ in range(partitions)], [0] * partitions

    def append(self, partition: int, at_ms: int, value: bytes | None = None) -> None:
        self.logs[partition].append((at_ms, letter_text(b"{}", f"reason {at_ms}") if value is None else value))

    # The consumer

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        assert timeout <= 30
        return self.lows[place.partition], len(self.logs[place.partition])

    def list_topics(self, topic: str, timeout: float) -> Any:
        assert timeout > 0
        error = None if self.topic_id else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=range(len(self.logs)))})

    def assign(self, places: list[Any]) -> None:
        self.places = {place.partition: place.offset for place in places}
        self.eof.clear()

    def unassign(self) -> None:
        self.places.clear()

    def consume(self, most: int, wait_s: float) -> list[Any]:
        found: list[Any] = []
        for partition, at in list(self.places.items()):
            if partition in self.frozen:
                continue
            log = self.logs[partition]
            new = [(offset, log[offset]) for offset in range(at, len(log)) if log[offset] is not None][:most]
            found += [message(partition, offset, *content) for offset, content in new]
            if len(new) == most:
                self.places[partition] = new[-1][0] + 1
                continue
            self.places[partition] = len(log)
            if partition not in self.eof or at < len(log):
                self.eof.add(partition)
                found.append(message(partition, len(log), error=KafkaError(EOF_CODE)))
        found += [message(-1, -1, error=error) for error in self.errors]
        self.errors.clear()
        if not found:
            self.clock.now_s += wait_s
        return found

    def close(self) -> None:
        self.places.clear()
        self.consumers -= 1

    # The administration

    def list_offsets(self, wanted: dict[Any, Any], **_options: Any) -> dict[Any, Future[Any]]:
        found: dict[Any, Future[Any]] = {place: Future() for place in wanted}
        for place, future in found.items():
            future.set_result(SimpleNamespace(offset=len(self.logs[place.partition])))
        self.after_round()
        return found


def message(partition: int, offset: int, at_ms: int = 0, value: Any = None, error: Any = None) -> Any:
    return SimpleNamespace(
        partition=lambda: partition,
        offset=lambda: offset,
        value=lambda: value,
        error=lambda: error,
        timestamp=lambda: (2, at_ms),
    )


class Stop(threading.Event):
    """Without a topic, nothing is read, and each wait is a round."""

    def __init__(self, after_round: Callable[[], None]) -> None:
        super().__init__()
        self._after_round = after_round

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._after_round()
        return self.is_set()


class Case:
    """The reading of a topic in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.letters = ManualClock(), DeadLetterIndex()
        self.kafka = Kafka(self.clock)
        self.reading = LetterReading(SETTINGS, self.clock, self.letters)
        self.successes = 0

        def consumer(*_given: object, **_more: object) -> Kafka:
            self.kafka.consumers += 1
            return self.kafka

        def facts(_admin: object, names: list[str], _timeout_s: float) -> dict[str, TopicFacts]:
            kafka = self.kafka
            return {names[0]: TopicFacts(kafka.topic_id, len(kafka.logs))} if kafka.topic_id else {}

        monkeypatch.setattr(letter_reading, "make_consumer", consumer)
        monkeypatch.setattr(letter_reading, "make_admin", lambda _kafka: self.kafka)
        monkeypatch.setattr(letter_reading, "topic_facts", facts)

    def run(self, *between: Callable[[], None]) -> None:
        """Read a round, then make each change and read another round."""
        changes = list(between)

        def after_round() -> None:
            if changes:
                changes.pop(0)()
            else:
                stop.set()

        stop = Stop(after_round)
        self.kafka.after_round = after_round
        self.reading.read(stop, self._note_success)
        assert self.kafka.consumers == 0

    def _note_success(self) -> None:
        self.successes += 1

    def reasons(self) -> list[str]:
        """Return the reasons of the letters, the oldest first."""
        return [one.reason.removeprefix("reason ") for one in reversed(self.letters.page(None, 200).letters)]

    def trouble(self) -> str:
        return self.letters.page(None, 1).trouble


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(monkeypatch)


def test_a_topic_that_does_not_exist_yet_is_no_error(case: Case) -> None:
    def create() -> None:
        assert (case.trouble(), case.letters.page(None, 1).read_ms) == ("", 1_000_000)
        case.kafka.create()
        case.kafka.append(1, 5)

    case.run(create)
    assert case.reasons() == ["5"]
    assert case.successes > 1


def test_what_was_there_is_shown_in_the_order_of_time_and_what_follows_as_it_arrives(case: Case) -> None:
    case.kafka.create()
    for at_ms in (3, 5, 8):
        case.kafka.append(0, at_ms)
    for at_ms in (4, 6):
        case.kafka.append(1, at_ms)
    case.run(lambda: case.kafka.append(1, 7), lambda: case.kafka.append(0, 9))
    assert case.reasons() == ["3", "4", "5", "6", "8", "7", "9"]


def test_start_records_of_replicas_are_no_dead_letters(case: Case) -> None:
    case.kafka.create()
    case.kafka.append(0, 1, b'{"start":{"machine.data":5}}')
    case.kafka.append(0, 2)
    case.kafka.append(0, 3, b'{"start":{"machine.data":6}}')
    case.run()
    assert case.reasons() == ["2"]
    assert not case.trouble()


def test_only_the_last_of_the_topic_are_read(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_reading, "LETTERS_MAX", 4)
    monkeypatch.setattr(letters, "LETTERS_MAX", 4)
    case.kafka.create()
    for at_ms in range(10):
        case.kafka.append(at_ms % 2, at_ms)
    case.run()
    assert case.reasons() == ["6", "7", "8", "9"]


def test_after_an_error_reading_goes_on_where_it_was_and_says_nothing_twice(case: Case) -> None:
    case.kafka.create()
    case.kafka.append(0, 1)

    def fail() -> None:
        case.kafka.append(0, 2)
        case.kafka.errors.append(KafkaError(KafkaError._FATAL, "broken"))  # noqa: SLF001 - its only name

    with pytest.raises(KafkaException, match="broken"):
        case.run(fail)
    # What arrived together with the error is not lost.
    assert case.reasons() == ["1", "2"]
    case.run(lambda: case.kafka.append(1, 3))
    assert case.reasons() == ["1", "2", "3"]
    assert [one.number for one in case.letters.page(None, 9).letters] == [3, 2, 1]


def test_an_error_before_all_was_read_changes_neither_what_is_shown_nor_its_order(case: Case) -> None:
    case.kafka.create()
    case.kafka.append(0, 2)
    case.kafka.append(1, 1)
    case.kafka.frozen.add(1)

    def fail() -> None:
        assert case.reasons() == []
        case.kafka.errors.append(KafkaError(KafkaError._FATAL, "broken"))  # noqa: SLF001 - its only name

    with pytest.raises(KafkaException):
        case.run(fail)
    case.kafka.frozen.clear()
    case.run()
    assert case.reasons() == ["1", "2"]


def test_the_letters_of_a_topic_that_was_deleted_are_forgotten(case: Case) -> None:
    case.kafka.create("first")
    case.kafka.append(0, 1)
    case.kafka.append(0, 2)

    def create_anew() -> None:
        assert case.reasons() == ["1", "2"]
        case.kafka.create("second")
        case.kafka.append(0, 3)

    def delete() -> None:
        assert case.reasons() == ["3"]
        case.kafka.create("")

    case.run(create_anew, delete, lambda: None)
    assert case.reasons() == []
    assert case.trouble() == ""


def test_a_log_that_has_lost_its_end_is_read_anew(case: Case) -> None:
    case.kafka.create()
    for at_ms in (1, 2, 3):
        case.kafka.append(0, at_ms)
    case.run()
    del case.kafka.logs[0][1:]
    case.run()
    assert case.reasons() == ["1"]


def test_what_retention_has_removed_meanwhile_is_skipped(case: Case) -> None:
    case.kafka.create()
    case.kafka.append(0, 1)
    case.run()
    for at_ms in (2, 3):
        case.kafka.append(0, at_ms)
    case.kafka.lows[0] = 2
    case.run()
    assert case.reasons() == ["1", "3"]


def test_further_partitions_are_read_as_well(case: Case) -> None:
    case.kafka.create(partitions=1)
    case.kafka.append(0, 1)

    def add() -> None:
        case.kafka.logs.append([])
        case.kafka.lows.append(0)
        case.kafka.append(1, 2)

    case.run(add, lambda: None)
    assert case.reasons() == ["1", "2"]


def test_markers_of_transactions_are_no_letters_and_do_not_withhold_any(case: Case) -> None:
    case.kafka.create()
    case.kafka.append(0, 1)
    case.kafka.logs[0].append(None)
    case.kafka.logs[1].append(None)
    case.run()
    assert case.reasons() == ["1"]
    assert case.successes == 1


def test_a_partition_from_which_nothing_arrives_is_named_and_withholds_nothing_for_good(case: Case) -> None:
    case.kafka.create()
    case.kafka.append(0, 1)
    case.kafka.append(1, 2)
    case.kafka.frozen.add(1)
    case.kafka.errors.append(KafkaError(KafkaError._TRANSPORT, "no route"))  # noqa: SLF001 - its only name

    def is_named() -> None:
        assert case.trouble() == f"{TOPIC} [1] cannot be read: no route"
        assert case.reasons() == ["1"]
        case.kafka.frozen.clear()

    case.run(*[lambda: None] * 5, is_named, lambda: None)
    assert case.reasons() == ["1", "2"]
    assert case.trouble() == ""


def test_what_is_withheld_is_bounded(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_reading, "LETTERS_MAX", 4)
    case.kafka.create()
    case.kafka.append(1, 0)
    case.kafka.frozen.add(1)

    def flood() -> None:
        assert case.reasons() == []
        for at_ms in range(1, 11):
            case.kafka.append(0, at_ms)

    case.run(flood)
    assert len(case.reasons()) > 8


def read(case: Case, partition: int, offset: int) -> Any:
    return read_message(case.kafka, case.clock, (TOPIC, partition, offset), case.clock.now_s + 5)  # type: ignore[arg-type] # as the consumer does


def test_one_message_is_read_by_its_place(case: Case) -> None:
    case.kafka.create()
    for at_ms in (1, 2, 3):
        case.kafka.append(1, at_ms, b"%d" % at_ms)
    assert [read(case, 1, offset).value() for offset in (2, 0, 1)] == [b"3", b"1", b"2"]


@pytest.mark.parametrize(
    ("partition", "offset", "why"),
    [
        (0, 0, "now begins at offset 1: retention has removed"),
        (0, 2, "no message at offset 2"),
        (0, 4, "no message at offset 4"),
        (0, 5, "ends at offset 5"),
        (0, 2**62, "ends at offset 5"),
        (2, 0, "there is no"),
    ],
)
def test_a_message_that_is_not_there_is_told_with_the_reason(case: Case, partition: int, offset: int, why: str) -> None:
    case.kafka.create()
    for at_ms in (1, 2):
        case.kafka.append(0, at_ms)
    case.kafka.logs[0] += [None, (4, b"x"), None]
    case.kafka.lows[0] = 1
    with pytest.raises(LetterGone, match=why):
        read(case, partition, offset)


def test_without_the_topic_there_is_no_message(case: Case) -> None:
    with pytest.raises(LetterGone, match="there is no"):
        read(case, 0, 0)


def test_a_read_ends_although_nothing_arrives(case: Case) -> None:
    case.kafka.create()
    case.kafka.append(0, 1)
    case.kafka.frozen.add(0)
    with pytest.raises(KafkaException, match="has not answered in time"):
        read(case, 0, 0)
    case.kafka.errors.append(KafkaError(KafkaError._FATAL, "broken"))  # noqa: SLF001 - its only name
    with pytest.raises(KafkaException, match="broken"):
        read(case, 0, 0)
