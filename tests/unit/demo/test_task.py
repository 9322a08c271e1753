"""Which errors the demo reports before anything starts, and how it reports later failures."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.settings import SettingsError
from demo.__main__ import main
from demo.flow import STALL_S, Flow, Stalled
from demo.run import Demo as RealDemo
from demo.services import ServiceFailed, Services
from demo.task import Task, Wishes, load_pipeline, read_task
from joiner.runtime.settings import PROCESS, SPARK
from simulator.settings import read_settings

GOOD = b'{"Thing": "R", "Timestamp": 1, "id": "e", "a": 1}\n'

JOIN = '[[join]]\nname = "j"\nleft = "a"\nright = "b"\noutput = "c"\n'


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with settings and events, and a clean environment. The SIGTERM handler is restored afterwards."""
    for name in list(os.environ):
        if name.startswith("LSB_") or name in {"EVENTS", "AS_RECORDED", "LOOP", "MOVE", "REBASE", "RUNNER", "UI"}:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("lsb.toml").write_text(JOIN)
    Path("good.json").write_bytes(GOOD)
    Path("empty.json").touch()
    Path("folder").mkdir()
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def wishes(events: Path | None = None, *, as_recorded: bool = False) -> Wishes:
    return Wishes(events, 10, "max", 1, as_recorded, Path("run"))


class Demo:
    """A stand-in for the demo. ``error`` is raised when it runs."""

    error: BaseException | None = None

    def __init__(self, task: Task) -> None:
        self.task = task

    def run(self) -> bool:
        """Return whether the run passed, as the demo does."""
        if self.error is not None:
            raise self.error
        return True


def forbid_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demo.__main__.Demo", Demo)
    monkeypatch.setattr(Demo, "error", AssertionError("the demo was started"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--events-count", "-5"], "--events-count: must be a whole number of at least 1, not -5"),
        (["--events-count", "0"], "--events-count: must be a whole number of at least 1, not 0"),
        (["--events-count", str(10**13)], "--events-count: events must be"),
        (["--rate", "abc"], "--rate: must be from 0.001 to"),
        (["--rate=-abc"], "--rate: must be from 0.001 to"),
        (["--rate", "-1"], "--rate: must be from 0.001 to"),
        (["--rate", "0"], "--rate: must be from 0.001 to"),
        (["--events", "nowhere.json"], "nowhere.json does not exist"),
        (["--events", "empty.json"], "empty.json is empty"),
        (["--events", "folder"], "folder is not a file"),
        (["--events", ""], "is not a file"),
        (["--folder", "good.json"], "--folder: good.json cannot be used"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid_to_start(monkeypatch)
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("EVENTS", "nowhere.json", "nowhere.json does not exist"),
        ("AS_RECORDED", "perhaps", "AS_RECORDED: must be 1 or 0"),
        ("LOOP", "2", "READ_FIRST_N, SKIP_FIRST_N, LOOP and REBASE"),
        ("LSB_TOPICS__PARTITIONS", "0", "topics.partitions"),
        ("LSB_CONNECTOR__IN_FLIGHT_MAX", "0", "connector.in_flight_max"),
        ("LSB_APPLICATION__NAME", "a b", "application.name"),
        ("LSB_DB_CONNECTOR__GROUP", "a b", "db_connector.group"),
        ("LSB_MQTT__TOPIC", "machine/+", "mqtt.topic"),
        ("LSB_MQTT__PASSWORD_FILE", "nowhere", "nowhere"),
    ],
)
def test_wrong_settings_are_told_before_anything_starts(
    variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid_to_start(monkeypatch)
    monkeypatch.setenv(variable, value)
    assert main([]) == 2
    assert words in capsys.readouterr().err


def test_a_joining_function_that_is_not_there_is_told_before_anything_starts() -> None:
    Path("lsb.toml").write_text(JOIN + 'function = "nowhere:f"\n')
    with pytest.raises(SettingsError, match="nowhere:f"):
        read_task(wishes())


def test_all_mistakes_of_the_settings_are_told_together_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_TOPICS__PARTITIONS", "0")
    monkeypatch.setenv("LSB_DB_CONNECTOR__GROUP", "a b")
    with pytest.raises(SettingsError) as found:
        read_task(wishes())
    assert [("partitions" in line, "group" in line) for line in str(found.value).splitlines()] == [
        (True, False),
        (False, True),
    ]


def test_the_simulator_publishes_the_chosen_file_to_the_connectors_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_MQTT__TOPIC", "line4/states")
    task = read_task(wishes(Path("good.json"), as_recorded=True))
    replay = read_settings(task.replay, {})
    assert (replay.events, replay.link.topic, replay.rate_per_s) == (Path("good.json"), "line4/states", None)
    assert replay.as_recorded
    assert task.plan is None


def test_generated_events_lie_in_the_demos_folder_and_are_what_is_replayed() -> None:
    task = read_task(wishes())
    assert task.plan is not None
    assert task.plan.events == 10
    assert task.events == Path("run/events.json")
    assert f"--events={task.events}" in task.replay
    assert task.folder.is_dir()


@pytest.mark.parametrize(
    ("variables", "route"),
    [
        ({}, (PROCESS, SPARK)),
        ({"RUNNER": "process"}, (PROCESS, None)),
        ({"RUNNER": "spark"}, (SPARK, None)),
        ({"MOVE": "1"}, (PROCESS, SPARK)),
        ({"MOVE": "1", "RUNNER": "process"}, (PROCESS, SPARK)),
        ({"MOVE": "1", "RUNNER": "spark"}, (SPARK, PROCESS)),
    ],
    ids=str,
)
def test_the_join_moves_to_spark_unless_a_runner_is_chosen(
    variables: dict[str, str],
    route: tuple[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    started: list[Task] = []

    def start(task: Task) -> Demo:
        started.append(task)
        return Demo(task)

    monkeypatch.setattr("demo.__main__.Demo", start)
    monkeypatch.setattr(Demo, "error", None)
    assert main([]) == 0
    assert [(task.runner, task.moves_to) for task in started] == [route]
    assert ("the next release will not accept MOVE=1" in capsys.readouterr().err) == ("MOVE" in variables)


def stand_in_for_the_joiner(monkeypatch: pytest.MonkeyPatch, *, status: int) -> RealDemo:
    Path("python").write_text(
        f"#!/bin/sh\necho asked: $*\necho 'MOVED: all 5 units, longest pause 0.4 s'\nexit {status}\n"
    )
    Path("python").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(Path("python").absolute()))
    return RealDemo(read_task(wishes()))


def test_the_move_is_shown_as_it_goes_and_its_verdict_again_in_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = stand_in_for_the_joiner(monkeypatch, status=0)
    assert demo.move(SPARK) == "all 5 units, longest pause 0.4 s"
    assert "asked: -m joiner move --to spark\nMOVED: all 5 units" in capsys.readouterr().out


def test_a_demo_ends_where_the_join_does_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = stand_in_for_the_joiner(monkeypatch, status=1)
    with pytest.raises(ServiceFailed, match="did not move"):
        demo.move(SPARK)


def test_the_database_connectors_group_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_DB_CONNECTOR__GROUP", "another")
    groups: list[str] = []
    monkeypatch.setattr("demo.flow.make_consumer", lambda _kafka, group: groups.append(group))
    Flow(load_pipeline())
    assert groups == ["demo", "another"]


def test_a_step_stalls_even_if_kafka_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT, "no answer"))

    monkeypatch.setattr("demo.flow.make_consumer", lambda *_: None)
    monkeypatch.setattr("demo.flow.log_range", look)
    monkeypatch.setattr("demo.flow._looks", lambda: iter([time.monotonic() + 2 * STALL_S]))
    with pytest.raises(Stalled, match=r"into Kafka: .*no progress for 60 s \(Kafka: no answer\)"):
        Flow(load_pipeline()).wait_in_kafka(1, Services(Path("run"), {}))


def test_a_service_that_ends_before_it_is_ready_is_not_called_slow() -> None:
    services = Services(Path("run"), {})
    services.start("short", "short")
    try:
        with pytest.raises(ServiceFailed, match="short ended before it was ready"):
            services.wait_for("short", "up")
    finally:
        services.stop()


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (None, 0, ""),
        (KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT, "no answer")), 1, "FAILED: Kafka: no answer"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_what_happens_later_is_told_in_a_line_and_by_the_status(
    error: BaseException | None,
    status: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("demo.__main__.Demo", Demo)
    monkeypatch.setattr(Demo, "error", error)
    assert main(["--events", "good.json"]) == status
    assert words in capsys.readouterr().err


def test_a_service_that_a_killed_demo_left_behind_is_stopped_by_the_next() -> None:
    sleeper = "import signal\nprint('up', flush=True)\nsignal.pause()\n"
    Path("sleeper.py").write_text(sleeper)
    killed, following = Services(Path("run"), {}), Services(Path("run"), {})
    try:
        killed.start("sleeper", "sleeper")
        killed.wait_for("sleeper", "up")
        following.start("sleeper", "sleeper")
        following.wait_for("sleeper", "up")
        following.check()
    finally:
        assert following.stop() == []
        assert killed.stop() == []
