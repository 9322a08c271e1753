"""Do counts become rates, and do Kafka's answers about topics and the sink's group become what is true of them?"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from broker.kafka.groups import ListedMember
from control.facts.flow import reading
from control.facts.flow.endpoints import Sink, target_of
from control.facts.flow.meters import (
    NOT_THERE,
    CopyFlow,
    Flow,
    GroupMember,
    MergerFlow,
    Meter,
    SinkFlow,
    SinkMeter,
    TopicFlow,
)
from control.facts.flow.reading import ASK_S, COPIES_S, FlowReading
from joiner.runtime.settings import replica_settings
from tests.manual_clock import ManualClock
from tests.unit.control.topologies import PLANT, status_of
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings

SINK = Sink("points", "http://db.example", "-/lsb/autogen", "joined")
TARGET = f"{target_of(SINK)}points of form 2"
OUT = "machine.out"


def test_a_rate_is_that_of_the_last_seconds() -> None:
    meter = Meter(10.0)
    assert (meter.rate(), meter.quiet_s()) == (None, 0.0)
    meter.note(0.0, 5)
    assert (meter.rate(), meter.quiet_s()) == (None, 0.0)
    meter.note(2.0, 25)
    assert meter.rate() == 10.0
    for at_s in range(4, 41, 2):
        meter.note(float(at_s), 25)
    assert (meter.rate(), meter.quiet_s()) == (0.0, 38.0)
    # A topic that was created anew begins with small offsets.
    meter.note(42.0, 3)
    assert (meter.rate(), meter.quiet_s()) == (0.0, 0.0)


def test_the_lag_of_a_sink_is_counted_from_what_it_has_acknowledged_or_from_the_beginning() -> None:
    meter = SinkMeter(10.0, range(3), target_of(SINK))
    members = [GroupMember("a", [0, 1, 2])]
    found = meter.note(0.0, members, {0: (10, TARGET), 1: (5, TARGET)}, {}, {0: 12, 1: 5, 2: 9})
    assert (found.lag, meter.uncommitted, found.members) == (None, [2], members)
    found = meter.note(2.0, [], {0: (12, TARGET), 1: (5, TARGET)}, {2: 4}, {0: 12, 1: 5, 2: 9})
    assert (found.lag, found.rate) == (5, 1.0)
    # It was committed after the ends were read.
    found = meter.note(4.0, [], {0: (13, TARGET), 1: (5, TARGET), 2: (9, TARGET)}, {}, {0: 12, 1: 5, 2: 9})
    assert found.lag == 0
    assert meter.note(6.0, [], {0: (13, TARGET), 1: (5, TARGET), 2: (9, TARGET)}, {}, {0: 12, 1: 5}).lag is None


def test_a_sink_is_stalled_while_results_wait_and_none_is_acknowledged() -> None:
    meter = SinkMeter(10.0, range(1), target_of(SINK))

    def stalled_s(now_s: float, acknowledged: int, end: int) -> float:
        return meter.note(now_s, [], {0: (acknowledged, TARGET)}, {}, {0: end}).stalled_s

    assert [stalled_s(0.0, 5, 5), stalled_s(90.0, 5, 5)] == [0.0, 0.0]
    assert [stalled_s(92.0, 5, 9), stalled_s(94.0, 5, 20)] == [2.0, 4.0]
    assert [stalled_s(96.0, 6, 20), stalled_s(98.0, 6, 20), stalled_s(100.0, 20, 20)] == [0.0, 2.0, 0.0]


@pytest.mark.parametrize(
    "metadata", ["", "set by hand", target_of(Sink("points", "http://db.example", "-/b", "joined"))]
)
def test_offsets_that_were_committed_for_another_database_are_named(metadata: str) -> None:
    meter = SinkMeter(10.0, range(2), target_of(SINK))
    assert meter.note(0.0, [], {0: (1, TARGET), 1: (1, metadata)}, {}, {}).others == [1]


class Kafka:
    """Answers requests about offsets and a group, with a delay if there is one. ``asked``: the requests, by kind."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] = {}
        self.unknown = set[str]()
        self.members: Any = []
        self.offsets: Any = {}
        """The committed ones, with their metadata."""
        self.fault: Any = None
        self.is_slow = False
        self.asked: list[str] = []
        self._waiting: list[tuple[Future[Any], Any]] = []

    def answer(self) -> None:
        """Answer what was asked."""
        for future, outcome in self._waiting:
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        self._waiting.clear()

    def list_offsets(self, wanted: dict[Any, Any], **options: Any) -> dict[Any, Future[Any]]:
        self.asked.append("ends" if "isolation_level" in options else "starts")
        base = None if "isolation_level" in options else 1
        no_topic = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return {
            place: self._future(
                no_topic
                if place.topic in self.unknown
                else SimpleNamespace(offset=base or self.ends.get((place.topic, place.partition), 0))
            )
            for place in wanted
        }

    def read_group(self, _admin: Any, _kafka: Any, _group: str, timeout_s: float) -> list[ListedMember]:
        assert timeout_s < 30
        self.asked.append("members")
        if isinstance(self.members, Exception):
            raise self.members
        return self.members  # type: ignore[no-any-return] # members, if not an exception

    # The consumer

    def poll(self, timeout: float) -> None:
        assert timeout == 0

    def committed(self, places: list[Any], timeout: float) -> list[Any]:
        assert timeout < 30
        self.asked.append("committed")
        return [
            SimpleNamespace(partition=place.partition, error=self.fault, offset=offset, metadata=metadata)
            for place in places
            for offset, metadata in [self.offsets.get(place.partition, (-1001, None))]
        ]

    def in_background(self, _name: str, call: Callable[[], Any]) -> Future[Any]:
        """Make a call that is answered like a request."""
        try:
            outcome = call()
        except KafkaException as error:
            outcome = error
        return self._future(outcome)

    def _future(self, outcome: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, outcome))
        if not self.is_slow:
            self.answer()
        return future


class Case:
    """A reading of what Kafka answers, with a clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sink: Sink | None = SINK, **sections: Any) -> None:
        self.kafka, self.clock = Kafka(), ManualClock()
        admin: Any = self.kafka
        monkeypatch.setattr(reading, "make_consumer", lambda _kafka, _group: self.kafka)
        monkeypatch.setattr(reading, "read_group", self.kafka.read_group)
        monkeypatch.setattr(reading, "in_background", self.kafka.in_background)
        self.reading = FlowReading(admin, make_settings(partitions=2, **sections), sink, self.clock)

    def later(self, after_s: float = ASK_S) -> Flow:
        """Return the flow some time later."""
        self.clock.now_s += after_s
        return self.reading.renewed()


def member(name: str, *partitions: int) -> ListedMember:
    places = [TopicPartition(topic, one) for topic in (OUT, "else") for one in partitions]
    return ListedMember(name, "a client", places)


def test_kafka_is_asked_at_intervals_and_with_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.kafka.offsets = {0: (0, TARGET), 1: (0, TARGET)}
    for _ in range(9):
        case.later(0.5)
    # The first request is sent at once, and the next ones 2 s and 4 s later.
    assert case.kafka.asked == ["ends", "members", "committed"] * 3
    case = Case(monkeypatch, sink=None)
    for _ in range(9):
        case.later(0.5)
    assert case.kafka.asked == ["ends"] * 3


def test_while_kafka_does_not_answer_nothing_waits_and_it_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.kafka.is_slow = True
    for _ in range(7):
        assert case.later() == Flow()
    assert case.kafka.asked == ["ends", "members", "committed"]
    case.kafka.ends[DATA, 1] = 8
    case.kafka.answer()
    # What was asked then is what is known now.
    assert case.later().topics[DATA] == TopicFlow(0, None, 0.0)
    case.kafka.answer()
    assert case.later().topics[DATA].end == 8


def test_the_topics_grow_by_what_is_appended_to_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.later()
    case.kafka.ends = {(DATA, 0): 6, (DATA, 1): 4, (OUT, 0): 3}
    case.later()
    found = case.later()
    assert found.topics[DATA] == TopicFlow(10, 5.0, 0.0)
    assert found.topics[OUT] == TopicFlow(3, 1.5, 0.0)
    assert set(found.topics) == {DATA, OUT, "machine.late", "machine.rejected"}


def test_the_group_of_the_sink_is_what_kafka_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.kafka.members = [member("db_connector", 1, 0), member("named")]
    case.kafka.offsets = {0: (4, TARGET)}
    case.kafka.ends = {(OUT, 0): 6, (OUT, 1): 8}
    case.later()
    found = case.later().sink
    assert found is not None
    # Partition 1 has no committed offset, and where it begins has not been asked yet.
    assert (found.members, found.lag) == ([GroupMember("db_connector", [0, 1]), GroupMember("named", [])], None)
    case.later()
    found = case.later().sink
    assert found is not None
    assert "starts" in case.kafka.asked
    assert found.lag == (6 - 4) + (8 - 1)
    assert found.others == []


def test_a_topic_that_does_not_exist_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.kafka.unknown = {"machine.late"}
    case.later()
    found = case.later()
    assert found.missing == {"machine.late": NOT_THERE}
    assert set(found.topics) == {DATA, OUT, "machine.rejected"}


def test_a_group_that_may_not_be_described_hides_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.kafka.members = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "not authorized"))
    case.later()
    found = case.later()
    assert found.sink == SinkFlow(fault="not authorized")
    assert DATA in found.topics


def test_offsets_that_kafka_refuses_to_tell_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.kafka.fault = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not authorized")
    case.later()
    assert case.later().sink == SinkFlow(fault="not authorized")


def test_an_answer_that_never_comes_hides_nothing_else_and_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(monkeypatch)
    never: Future[Any] = Future()
    calls: list[Callable[[], Any]] = []

    def in_background(_name: str, call: Callable[[], Any]) -> Future[Any]:
        calls.append(call)
        return never

    monkeypatch.setattr(reading, "in_background", in_background)
    case.later()
    assert case.later(15.0) == Flow()
    found = case.later()
    assert found.sink == SinkFlow(fault="Kafka does not answer")
    assert DATA in found.topics
    for _ in range(20):
        case.later()
    assert len(calls) == 2, "the members and the committed offsets"


def test_kafka_is_asked_now_and_then_how_far_repartitioning_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, sink=None, stream=[PLANT])
    answers: list[Any] = [[status_of("plant", ["one"], 5)], KafkaException(KafkaError(1, "not authorized"))]

    def read_repartition(*_: Any) -> Any:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(reading, "read_repartition", read_repartition)
    assert case.later().copies is None
    assert case.later().copies == CopyFlow({"plant": status_of("plant", ["one"], 5)})
    assert case.later().copies == CopyFlow({"plant": status_of("plant", ["one"], 5)})
    case.later(COPIES_S)
    assert case.later().copies == CopyFlow(fault="not authorized")
    assert answers == []


TWO: dict[str, Any] = {"application": {"replicas": 2}}
MERGED = "machine.out.merged"


def test_with_replicas_their_results_the_merged_ones_and_the_merger_are_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(monkeypatch, sink=None, **TWO)
    case.kafka.members = [ListedMember("one", "a client", [TopicPartition("lsb.control", 0)]), member("two")]
    assert case.later().merger is None
    case.kafka.members = []
    found = case.later()
    assert found.merger == MergerFlow([GroupMember("one", [0]), GroupMember("two", [])])
    assert set(found.topics) == {DATA, OUT, f"{OUT}.r1", MERGED, "machine.late", "machine.rejected"}
    assert case.later().merger == MergerFlow([])


def test_without_replicas_nothing_more_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, sink=None)
    for _ in range(3):
        found = case.later()
    assert (found.merger, case.kafka.asked) == (None, ["ends"] * 3)
    assert not any(MERGED in name or ".r1" in name for name in found.topics)


def test_of_another_replica_only_its_own_topics_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replica_settings(make_settings(partitions=2, **TWO), 1)
    case = Case(monkeypatch, sink=None)
    admin: Any = case.kafka
    case.reading = FlowReading(admin, settings, None, case.clock)
    case.later()
    found = case.later()
    assert set(found.topics) == {DATA, f"{OUT}.r1", "machine.late.r1", "machine.rejected.r1"}
    assert "members" not in case.kafka.asked


def test_members_of_the_merger_that_may_not_be_described_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, sink=None, **TWO)
    case.kafka.members = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "not authorized"))
    case.later()
    assert case.later().merger == MergerFlow(fault="not authorized")


def test_a_sink_of_merged_results_is_behind_the_merged_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    # Also after the other replicas were given up.
    for sections in (TWO, {}):
        case = Case(monkeypatch, sink=msgspec.structs.replace(SINK, is_merged=True), **sections)
        case.kafka.members = [ListedMember("db_connector", "a client", [TopicPartition(MERGED, 1)])]
        case.kafka.offsets = {0: (4, TARGET), 1: (0, TARGET)}
        case.kafka.ends = {(OUT, 0): 60, (MERGED, 0): 6, (MERGED, 1): 1}
        case.later()
        found = case.later()
        assert found.sink is not None
        assert (found.sink.lag, found.sink.members) == (3, [GroupMember("db_connector", [1])])
        assert found.merger is not None
