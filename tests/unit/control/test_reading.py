"""Does the reading of topics publish only what it has read, and say what it cannot read?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from control.facts import reading
from control.facts.reading import Facts, Reading
from control.facts.timeline import Timeline
from joiner.runtime.control import Drain, encode
from joiner.runtime.kafka.clients import EOF_CODE
from joiner.runtime.model import checkpoint_key
from joiner.runtime.model import encode as encode_state
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint

SETTINGS = make_settings(partitions=2)
STATE, CONTROL = SETTINGS.state_topic, SETTINGS.control_topic
MARKER = object()
"""The marker of a transaction, which occupies an offset and is no message."""


class Kafka:
    """Topics in memory, as the clients show them. ``logs``: by topic and partition, (key, value) or `MARKER`."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], list[Any]] = {(DATA, 0): [], (DATA, 1): []}
        self.places: dict[tuple[str, int], int] = {}
        self.eof: set[tuple[str, int]] = set()
        self.frozen = set[tuple[str, int]]()
        """Partitions from which nothing arrives."""
        self.no_ends = set[tuple[str, int]]()
        """Partitions whose end is not known."""
        self.errors: list[tuple[str, int, KafkaError]] = []
        """Errors to report next: the topic and the partition, or an empty string and -1, and the error."""
        self.before_consume: Callable[[], None] = lambda: None

    def create(self, *topics: str) -> None:
        for topic in topics:
            for partition in range(1 if topic == CONTROL else 2):
                self.logs[topic, partition] = []

    # The consumer

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        assert timeout < 30
        return 0, len(self.logs[place.topic, place.partition])

    def incremental_assign(self, places: list[Any]) -> None:
        for place in places:
            assert (place.topic, place.partition) not in self.places
            self.places[place.topic, place.partition] = place.offset
            self.eof.discard((place.topic, place.partition))

    def incremental_unassign(self, places: list[Any]) -> None:
        for place in places:
            del self.places[place.topic, place.partition]

    def consume(self, _most: int, _wait_s: float) -> list[Any]:
        self.before_consume()
        found = [message(topic, partition, -1, error=error) for topic, partition, error in self.errors]
        self.errors.clear()
        for place, at in list(self.places.items()):
            if place in self.frozen:
                continue
            log = self.logs[place]
            new = [(offset, log[offset]) for offset in range(at, len(log)) if log[offset] is not MARKER]
            found += [message(*place, offset, *content) for offset, content in new]
            self.places[place] = len(log)
            if place not in self.eof and at == len(log):
                self.eof.add(place)
                found.append(message(*place, len(log), error=KafkaError(EOF_CODE)))
        return found

    def close(self) -> None:
        self.places.clear()

    # The administration

    def list_offsets(self, wanted: dict[Any, Any], **_options: Any) -> dict[Any, Future[Any]]:
        found: dict[Any, Future[Any]] = {}
        for place in wanted:
            found[place] = Future()
            if (place.topic, place.partition) in self.no_ends:
                found[place].set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT, "no leader")))  # noqa: SLF001 - its only name
            else:
                log = self.logs.get((place.topic, place.partition), [])
                found[place].set_result(SimpleNamespace(offset=len(log)))
        return found


def message(topic: str, partition: int, offset: int, key: Any = None, value: Any = None, error: Any = None) -> Any:
    return SimpleNamespace(
        topic=lambda: topic or None,
        partition=lambda: partition,
        offset=lambda: offset,
        key=lambda: key,
        value=lambda: value,
        error=lambda: error,
        timestamp=lambda: (1, 1_000 + offset),
    )


def checkpoint(unit: int = 0, consumed: int = 0, instance: str = "one", **changes: Any) -> tuple[bytes, bytes]:
    made = make_checkpoint(unit=unit, offsets={DATA: consumed}, instance=instance, run=instance, **changes)
    return checkpoint_key(unit).encode(), encode_state(made)


class Case:
    """A reading of topics in memory, with a clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka, self.clock, self.timeline = Kafka(), ManualClock(), Timeline()
        self.refused: list[str] = []
        monkeypatch.setattr(reading, "make_admin", lambda _kafka: self.kafka)
        monkeypatch.setattr(reading, "make_consumer", lambda *_given, **_options: self.kafka)
        monkeypatch.setattr(reading, "topic_facts", self._topic_facts)
        monkeypatch.setattr(reading, "read_members", self._members)
        self.reading = Reading(SETTINGS, self.clock, self.timeline)

    def look(self, after_s: float = 1.0) -> Facts | None:
        """Read once, some time later, and return the facts."""
        self.clock.now_s += after_s
        stop = threading.Event()
        self.kafka.before_consume = stop.set
        self.reading.read_until(self.clock.now_s + 0.01, stop)
        return self.reading.facts()

    def shown(self, after_s: float = 1.0) -> Facts:
        """Return the facts of a later look, which must be known."""
        facts = self.look(after_s)
        assert facts is not None
        return facts

    def _topic_facts(self, _admin: Any, names: list[str], _timeout_s: float) -> dict[str, Any]:
        return {name: "" for name in names if any(topic == name for topic, _ in self.kafka.logs)}

    def _members(self, *given: Any) -> dict[str, Any]:
        report = given[-1]
        for text in self.refused:
            report(text)
        return {}


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(monkeypatch)


def test_an_application_that_has_never_run_has_no_status_until_it_runs(case: Case) -> None:
    case.reading.read_until(case.clock.now_s, threading.Event())
    facts = case.reading.facts()
    assert facts == Facts(lag=0, read_ms=1_000_000, trouble="")
    # What is appended to the topics is known all the same.
    case.kafka.logs[DATA, 1] = [MARKER] * 7
    assert case.shown(after_s=3.0).flow.topics[DATA].end == 0
    assert case.shown(after_s=3.0).flow.topics[DATA].end == 7
    case.kafka.create(STATE)
    facts = case.shown()
    assert facts.status is not None
    assert facts.status.units == [None, None]


def test_nothing_is_shown_before_everything_that_was_there_has_been_read(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    case.kafka.logs[STATE, 0] = [checkpoint(0)]
    case.kafka.logs[STATE, 1] = [checkpoint(1)]
    case.kafka.frozen = {(STATE, 1)}
    assert case.look() is None
    case.kafka.errors = [("", -1, KafkaError(KafkaError._TRANSPORT, "the leader is away"))]  # noqa: SLF001 - its only name
    assert case.look() is None
    with pytest.raises(KafkaException, match=r"state \[1\] cannot be read: the leader is away"):
        case.look(after_s=20.0)
    case.kafka.frozen.clear()
    facts = case.shown()
    assert facts.status is not None
    assert None not in facts.status.units


def test_a_unit_whose_last_records_have_no_checkpoint_is_read_from_the_beginning(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    chunks = [(b"0/0/1", b"chunk")] * 100
    case.kafka.logs[STATE, 0] = [checkpoint(0, instance="old"), checkpoint(0, instance="new"), *chunks]
    assert case.look() is None
    # What arrives meanwhile is not taken for the end of the search, and old owners are no events.
    case.kafka.logs[STATE, 0].append((b"0/0/2", b"chunk"))
    facts = case.shown()
    assert facts.status is not None
    unit = facts.status.units[0]
    assert unit is not None
    assert unit.instance == "new"
    assert not case.timeline.events
    # A partition without any checkpoint is searched once.
    case.kafka.logs[STATE, 1] = [(b"1/0/1", b"chunk")] * 100
    assert case.shown().status is not None


def test_a_partition_that_begins_with_the_marker_of_a_transaction_is_read_on(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    case.kafka.logs[STATE, 0] = [MARKER]
    for _ in range(3):  # it is read, searched from its beginning, and read to its end again
        case.look()
    case.kafka.logs[STATE, 0] += [checkpoint(0), MARKER]
    facts = case.shown()
    assert facts.status is not None
    assert facts.status.units[0] is not None


def test_a_control_topic_that_is_created_later_is_read(case: Case) -> None:
    case.kafka.create(STATE)
    case.shown()
    case.kafka.create(CONTROL)
    case.kafka.logs[CONTROL, 0] = [(None, encode(Drain(site="process", instance="one")))]
    case.shown(after_s=3.0)
    case.shown()
    assert [event.kind for event in case.timeline.events] == ["drained"]


def test_the_lag_is_counted_up_to_the_stable_ends(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    case.kafka.logs[DATA, 0] = [MARKER] * 10
    case.kafka.logs[STATE, 0] = [checkpoint(0, consumed=4)]
    assert case.shown().lag == 6
    case.kafka.no_ends = {(DATA, 0)}
    facts = case.shown()
    # One partition that cannot be asked hides nothing else.
    assert (facts.lag, facts.missing, facts.trouble) == (None, [f"{DATA} [0]: no leader"], "")
    assert facts.status is not None
    assert [unit and unit.lag for unit in facts.status.units] == [None, None]
    # A checkpoint may be newer than the ends.
    case.kafka.no_ends.clear()
    case.kafka.logs[STATE, 0].append(checkpoint(0, consumed=12))
    assert case.shown().lag == 0


def test_what_a_unit_reads_and_writes_is_that_of_the_last_seconds(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    case.kafka.logs[DATA, 0] = [MARKER] * 30
    counts = {"records": 4, "pairs": 2, "failed": 0, "rejected": 1}
    case.kafka.logs[STATE, 0] = [checkpoint(0, consumed=4, counts=counts)]
    case.shown()
    more = {"records": 24, "pairs": 12, "failed": 2, "rejected": 2, "rows": 7, "failed_rows": 1, "late": 5}
    case.kafka.logs[STATE, 0].append(checkpoint(0, consumed=24, counts=more))
    facts = case.shown(after_s=2.0)
    assert facts.rates == [10.0, 0.0]
    first, second = facts.flow.units
    assert second is None
    assert first is not None
    assert (first.consumed, first.lags) == ({DATA: 10.0}, {DATA: 6})
    # Of 10 pairs, 2 have failed, and of 7 rows 1; with one record that was unusable, those are 4 dead letters.
    assert first.written == {"out": 7.0, "late": 2.5, "unmatched": 0.0, "rejected": 2.0}


def test_topics_that_cannot_be_asked_delay_and_hide_nothing(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    case.kafka.no_ends = {("machine.late", 1)}
    for _ in range(2):
        facts = case.shown(after_s=3.0)
    assert (facts.missing, facts.flow.missing) == ([], {"machine.late": "no leader"})
    assert DATA in facts.flow.topics


def test_if_no_end_is_known_that_is_an_error_with_its_cause(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    case.shown()
    case.kafka.no_ends = set(case.kafka.logs)
    with pytest.raises(KafkaException) as error:
        case.look()
    assert isinstance(error.value.args[0], KafkaError)


def test_a_partition_from_which_nothing_arrives_is_named(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    case.kafka.logs[STATE, 0] = [checkpoint(0)]
    case.shown()
    case.kafka.frozen = {(STATE, 0)}
    case.kafka.logs[STATE, 0].append(checkpoint(0))
    assert case.shown().missing == []
    assert case.shown(after_s=6.0).missing == [f"{STATE} [0] cannot be read"]
    case.kafka.frozen.clear()
    assert case.shown().missing == []


def test_markers_of_transactions_are_no_gap(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    case.shown()
    for _ in range(10):
        # Under load, the client never reports the end of the log.
        case.kafka.eof.add((STATE, 0))
        case.kafka.logs[STATE, 0] += [checkpoint(0), MARKER]
        assert case.shown(after_s=3.0).missing == []


def test_groups_that_may_not_be_described_are_named(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    case.refused = ["the members of group 'lsb' cannot be read: not authorized"]
    assert case.shown().missing == case.refused
    # The groups are not asked at every look, but the answer remains.
    assert case.shown(after_s=0.1).missing == case.refused
    case.refused = []
    assert case.shown(after_s=3.0).missing == []


def test_an_error_of_a_partition_ends_the_reading(case: Case) -> None:
    case.kafka.create(STATE, CONTROL)
    case.shown()
    case.kafka.errors = [(STATE, 0, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "the topic is gone"))]
    with pytest.raises(KafkaException, match="the topic is gone"):
        case.look()


def test_records_that_are_read_again_after_an_outage_are_no_further_events(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.kafka.create(STATE, CONTROL)
    case.kafka.logs[CONTROL, 0] = [(None, encode(Drain(site="process", instance="one")))]
    case.shown()
    assert len(case.timeline.events) == 1
    case.reading.close()
    again = Case(monkeypatch)
    again.kafka.logs = case.kafka.logs
    again.reading = Reading(SETTINGS, again.clock, case.timeline)
    again.kafka.logs[CONTROL, 0].append((None, encode(Drain(site="process", instance="two"))))
    again.shown()
    assert [event.instance for event in case.timeline.events] == ["one", "two"]
