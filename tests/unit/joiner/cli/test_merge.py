"""What does `joiner merge` refuse before it connects to Kafka, and what does it do if a topic is replaced?"""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from prometheus_client import CollectorRegistry

from broker.kafka.replicas import merging_state_topic
from broker.kafka.topics import TopicError
from broker.metrics import Readings
from joiner.cli.main import build_parser
from joiner.cli.merging import merger
from joiner.cli.merging.command import merge
from joiner.cli.merging.merger import MergeMetrics, Merger, merge_topics
from joiner.cli.merging.serial_index import SerialIndex
from joiner.runtime.kafka.topics import TopicReplaced
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings


def test_results_in_arrow_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    settings = make_settings(application={"replicas": 2, "results": "arrow"})
    assert merge(settings, ManualClock(), 10) == 2
    assert capsys.readouterr().err == (
        "application.results is 'arrow', which cannot be merged: choose 'full' or 'compact'\n"
    )


class Watch:
    """A `TopicWatch` that finds another topic at its first check."""

    found: ClassVar[list[TopicError]] = []

    def __init__(self, *_given: object) -> None:
        pass

    def check(self) -> None:
        if self.found:
            raise self.found.pop()


class Sessions:
    """Counts sessions, and stops at the end of the second one's first turn."""

    def __init__(self) -> None:
        self.begun = 0
        self.merger: Merger | None = None
        self.metrics = MergeMetrics(Readings(CollectorRegistry()))
        self.partitions: dict[tuple[str, int], object] = {}

    def __call__(self, *_given: object) -> Sessions:
        self.begun += 1
        return self

    def turn(self) -> bool:
        assert self.merger is not None
        self.merger.stop()
        return False

    def waiting(self) -> int:
        return 0

    def verdicts(self) -> Counter[tuple[str, ...]]:
        return Counter()

    def leads(self) -> tuple[Counter[tuple[str, ...]], Counter[tuple[str, ...]]]:
        return Counter({("out", "1"): self.begun}), Counter({("out", "1"): 500 * self.begun})

    def close(self) -> None:
        pass


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    made = Sessions()
    leadership = SimpleNamespace(check=lambda: True, close=lambda: None)
    for name, stand_in in {
        "make_admin": lambda _kafka: None,
        "ensure_topics": lambda *_given: {},
        "wait_for_topics": lambda *_given: {},
        "Leadership": lambda *_given: leadership,
        "TopicWatch": Watch,
        "Session": made,
    }.items():
        monkeypatch.setattr(merger, name, stand_in)
    made.merger = Merger(make_settings(application={"replicas": 2}), ManualClock(), made.metrics)
    return made


def test_a_topic_that_was_replaced_begins_another_session_instead_of_telling_to_reset_the_application(
    sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    Watch.found.append(TopicReplaced("run `joiner reset`", ["machine.out.r1"]))
    assert sessions.merger is not None
    sessions.merger.run()
    assert sessions.begun == 2
    assert "machine.out.r1" in caplog.text
    assert "joiner reset" not in caplog.text


def test_leads_are_counted_over_all_sessions(sessions: Sessions) -> None:
    registry = CollectorRegistry()
    one = Merger(make_settings(application={"replicas": 2}), ManualClock(), MergeMetrics(Readings(registry)))
    sessions.merger = one
    Watch.found.append(TopicReplaced("", ["machine.out.r1"]))
    one.run()
    labels = {"topic": "out", "replica": "1"}
    assert sessions.begun == 2
    assert registry.get_sample_value("lsb_joiner_merge_leads_total", labels) == 1 + 2
    assert registry.get_sample_value("lsb_joiner_merge_lead_seconds_total", labels) == 0.5 + 1.0


def test_a_process_that_waits_for_its_turn_is_ready(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter([False, True])
    one = sessions.merger
    assert one is not None
    seen: list[bool] = []

    def check() -> bool:
        seen.append(one.is_ready)
        return next(turns, True)

    monkeypatch.setattr(merger, "Leadership", lambda *_given: SimpleNamespace(check=check, close=lambda: None))
    one.run()
    assert seen == [False, True, True], "before anything is known, while it waits, and while it merges"


def test_the_metrics_show_complete_replicas_only_while_a_process_merges(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    union = SimpleNamespace(complete=[0, 1], remembered=3)
    sessions.partitions = {("machine.out", unit): SimpleNamespace(union=union) for unit in (0, 1)}
    monkeypatch.setattr(sessions, "waiting", lambda: 1)
    seen: list[object] = []
    metrics, one = sessions.metrics, sessions.merger
    assert one is not None

    def close() -> None:
        found = metrics.complete, metrics.partitions, metrics.remembered
        seen.extend((metrics.merging, metrics.waiting, *map(dict, found)))

    monkeypatch.setattr(sessions, "close", close)
    one.run()
    complete = {("machine.out", "0"): 2, ("machine.out", "1"): 2}
    assert seen == [1, 1, complete, {("machine.out",): 2}, {("machine.out",): 6}]
    assert (metrics.merging, metrics.waiting, metrics.complete) == (0, 0, {})
    assert (metrics.partitions, metrics.remembered) == ({}, {})


def test_a_process_that_has_waited_in_peace_starts_over_as_soon_as_at_first(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may never have merged. Otherwise, it would wait ten seconds after a few restarts of Kafka, even in months."""
    clock, apart_s = ManualClock(), iter([20.0, 20.0, 20.0, 100.0, 20.0])
    one = Merger(make_settings(application={"replicas": 2}), clock, sessions.metrics)

    def check() -> bool:
        if (step_s := next(apart_s, None)) is None:
            one.stop()
            return False
        clock.now_s += step_s
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "it is gone"))

    def pass_time() -> None:
        clock.now_s += 0.1

    monkeypatch.setattr(merger, "Leadership", lambda *_given: SimpleNamespace(check=check, close=lambda: None))
    monkeypatch.setattr(merger, "_WAIT_MIN_S", 0.01)
    one._wait_s = 0.01  # noqa: SLF001 - as at the beginning
    one.run(pass_time)
    waits = [record.args[1] for record in caplog.records if isinstance(record.args, tuple) and len(record.args) == 2]
    assert waits == [0.01, 0.02, 0.04, 0.01, 0.02]


def test_topics_with_other_partitions_end_merging(sessions: Sessions) -> None:
    Watch.found.append(TopicError("other partitions"))
    assert sessions.merger is not None
    with pytest.raises(TopicError, match="other partitions"):
        sessions.merger.run()


def test_settings_that_the_client_rejects_end_the_process() -> None:
    settings = make_settings(kafka={"client": {"no.such": "1"}}, application={"replicas": 2})
    beats = itertools.count()

    def beat() -> None:
        assert next(beats) < 100, "it starts over again and again"

    with pytest.raises(KafkaException, match=r"no\.such"):
        Merger(settings, ManualClock(), MergeMetrics(Readings(CollectorRegistry()))).run(beat)


def test_the_state_topic_does_not_keep_the_markers_of_a_whole_day() -> None:
    """All of it is read before merging begins, so the time until another process continues would grow all day."""
    specs = {spec.name: spec for spec in merge_topics(make_settings(application={"replicas": 2}))}
    state = specs[merging_state_topic("lsb")]
    assert state.required == {"cleanup.policy": "compact"}
    assert int(state.initial["delete.retention.ms"]) <= 60_000
    assert int(state.initial["segment.bytes"]) == 1024 * 1024, "Kafka accepts no less"


def test_the_offset_of_a_serial_is_found_although_only_some_are_known() -> None:
    index = SerialIndex()
    index.add(0, 5)
    index.add(0, 9)
    for serial in range(10, 100_000, 10):
        index.add(serial, 2 * serial + 7)
    assert index.find(3) == (5, 0)
    for wanted in (50_000, 77_777, 99_991):
        offset, serial = index.find(wanted)
        assert wanted - 1_000 < serial <= wanted
        assert offset == 2 * serial + 7
    index.add(10**6, 10**7)
    assert index.find(10**6) == (10**7, 10**6)
    assert index.find(10**6 + 5) == (10**7, 10**6)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--remembered-max", "0"], "'0' is not a number of ids: use 1 to 100000000"),
        (["--remembered-max", "many"], "'many' is not a number of ids"),
        (["--replica", "1"], "unrecognized arguments: --replica 1"),
    ],
)
def test_what_merging_cannot_mean_is_refused(
    arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["merge", *arguments])
    assert what in capsys.readouterr().err
