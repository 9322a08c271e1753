"""What does the stage give to its instances and to Spark, and what does it say when Spark fails?"""

from __future__ import annotations

import fcntl
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from py4j.protocol import Py4JJavaError

from broker.commandline import GRACE_S
from broker.kafka.topics import TopicError
from broker.settings import SettingsError
from joiner.runtime.control import Claiming, Record, Stop
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.runners.spark import instance, stage
from joiner.runtime.runners.spark.instance import Outcome, StageOrder, run_instance, settings_of
from joiner.runtime.runners.spark.session import make_session, scratch_folder
from tests.unit.joiner.runtime.joiner_inputs import make_settings


@pytest.mark.parametrize(
    ("listen", "expected"),
    [("127.0.0.1:9464", "127.0.0.1:9467"), ("[::1]:9464", "[::1]:9467"), ("127.0.0.1:0", "127.0.0.1:0"), (None, None)],
)
def test_each_instance_has_its_own_name_and_port(listen: str | None, expected: str | None) -> None:
    found = settings_of(make_settings(application={"instance": "green"}, metrics={"listen": listen}), 3)
    assert (found.application.instance, found.metrics.listen) == ("green-3", expected)


def test_an_instance_without_a_port_for_its_metrics_says_which_to_choose() -> None:
    with pytest.raises(SettingsError, match=r"instance 3 would listen on port 65536.*choose a lower port"):
        settings_of(make_settings(metrics={"listen": "127.0.0.1:65533"}), 3)


@pytest.mark.parametrize(
    ("error", "status"), [(TopicError("the topic data is not there"), 1), (SettingsError("metrics.listen: in use"), 2)]
)
def test_an_instance_that_ends_early_logs_the_reason_while_the_others_run(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Process(SimpleNamespace):
        def run(self) -> int:
            raise error

    monkeypatch.setattr(instance, "JoinerProcess", lambda *_, **__: Process(stop=lambda: None))
    monkeypatch.setattr(instance, "_await_stop", lambda *_: None)
    order = StageOrder(make_settings(), "mine", "info", force=False, standby=False)
    assert run_instance(order, 3, 0) == Outcome(status, str(error))
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"instance 3 has ended: {error}"
    ]


@pytest.mark.timeout(20)
def test_an_instance_that_waits_for_its_next_attempt_hears_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        def __init__(self, *_: Any, **__: Any) -> None:
            self._is_stopped = False

        def stop(self) -> None:
            self._is_stopped = True

        def run(self) -> int:
            assert self._is_stopped
            return 0

    monkeypatch.setattr(instance, "JoinerProcess", Process)
    monkeypatch.setattr(instance, "_RETRY_WAIT_MAX_S", 3600.0)
    monkeypatch.setattr(instance, "_await_stop", lambda _settings, _stage, stop, _is_over: stop())
    order = StageOrder(make_settings(), "mine", "info", force=False, standby=False)
    assert run_instance(order, 0, 50) == Outcome(0, "")


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", "local[1,100]"),
        ("local[*]", "local[*,100]"),
        ("local[4]", "local[4,100]"),
        ("local[4,2]", "local[4,2]"),
        ("spark://one:7077", "spark://one:7077"),
    ],
)
def test_a_local_master_repeats_failed_tasks_as_a_cluster_does(
    master: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    chosen: dict[str, str] = {}

    class Builder:
        def appName(self, _name: str) -> Builder:  # noqa: N802 - Spark's name
            return self

        def master(self, given: str) -> Builder:
            chosen["master"] = given
            return self

        def config(self, name: str, value: str) -> Builder:
            chosen[name] = value
            return self

        def getOrCreate(self) -> None:  # noqa: N802 - Spark's name
            return

    monkeypatch.setattr("joiner.runtime.runners.spark.session.SparkSession", SimpleNamespace(builder=Builder()))
    make_session(make_settings(spark={"master": master, "config": {"spark.speculation": True}}), tmp_path)
    assert (chosen["master"], chosen["spark.speculation"]) == (expected, "false")


def test_a_stage_that_starts_removes_the_folder_of_a_killed_stage_but_of_none_that_is_starting_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = tmp_path / "joiner-spark-killed"
    killed.mkdir()
    (killed / "alive").touch()
    lock = fcntl.flock
    others: list[Path] = []

    def lock_late(file: Any, how: int) -> None:
        # Before the first stage has locked its folder, a second one starts.
        if how == fcntl.LOCK_EX and not others:
            others.append(tmp_path)
            with scratch_folder() as other:
                others.append(other)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with scratch_folder() as folder:
        assert (folder / "alive").exists()
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert len(others) == 2
    assert list(tmp_path.iterdir()) == []


def test_an_instance_stops_when_its_own_stage_asks_it_to(monkeypatch: pytest.MonkeyPatch) -> None:
    arriving: list[list[Record]] = [[Stop(run="another")], [Claiming(units=[0], to="green", run="mine")], []]
    closed: list[bool] = []

    class Control:
        def __init__(self, _settings: Any) -> None: ...

        def read(self, _wait_s: float) -> list[tuple[Record, int]]:
            found = arriving.pop(0) if arriving else [Stop(run="mine")]
            assert not stopped, "asked once"
            return [(record, 0) for record in found]

        def close(self) -> None:
            closed.append(True)

    stopped: list[bool] = []
    monkeypatch.setattr(instance, "ControlLog", Control)
    instance._await_stop(make_settings(), "mine", lambda: stopped.append(True), threading.Event().is_set)  # noqa: SLF001 - a single step
    assert (stopped, closed, arriving) == ([True], [True], [])


def test_a_stage_asks_its_instances_to_stop_until_all_have(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[Stop] = []

    class Control:
        def __init__(self, _settings: Any) -> None: ...

        def post(self, record: Stop) -> None:
            posted.append(record)

        def close(self) -> None: ...

    monkeypatch.setattr(stage, "ControlLog", Control)
    running = stage.SparkStage(make_settings(), Claimant("mine", "one", "spark"))

    class Job:
        def wait(self, _seconds: float) -> bool:
            running.stop()
            return len(posted) == 3

    job: Any = Job()
    running._wait_for(job)  # noqa: SLF001 - a single step
    assert posted == [Stop(run="mine")] * 3


def test_a_stage_gives_its_instances_time_for_their_last_snapshots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    graces: list[float] = []

    def end(_stop: Any, grace_s: float = GRACE_S) -> None:
        graces.append(grace_s)

    session = SimpleNamespace(sparkContext=None, stop=lambda: None)
    job = SimpleNamespace(wait=lambda _seconds: True, result=lambda: [Outcome(0, ""), Outcome(1, "")])
    monkeypatch.setattr(stage, "end_on_signals", end)
    monkeypatch.setattr(stage, "make_session", lambda *_: session)
    monkeypatch.setattr(stage, "_Job", lambda *_: job)
    running = stage.SparkStage(make_settings(), Claimant("mine", "one", "spark"))
    assert running._run_in(tmp_path) == 1  # noqa: SLF001 - without Spark
    assert [grace_s > GRACE_S for grace_s in graces] == [True]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConnectionRefusedError("111"), "Spark's JVM has exited"),
        (ValueError("no such master\nat java.lang"), "no such master"),
    ],
)
def test_an_error_of_spark_is_told_in_a_line(error: BaseException, line: str) -> None:
    told = stage.in_a_line(error)
    assert told.startswith(line)
    assert "\n" not in told


def test_an_error_of_the_jvm_without_a_message_is_told_by_its_class() -> None:
    cause = SimpleNamespace(
        _target_id="o1", getMessage=lambda: None, toString=lambda: "java.util.concurrent.TimeoutException"
    )
    assert stage.in_a_line(Py4JJavaError("a call failed", cause)) == "java.util.concurrent.TimeoutException"


def test_an_instance_that_kafka_failed_is_started_again_by_spark(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_given: Any) -> int:
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "not allowed"))

    monkeypatch.setattr(instance, "_run", fail)
    monkeypatch.setattr(instance, "set_up_logs", lambda _level: None)
    order = instance.StageOrder(make_settings(), "mine", "info", force=False, standby=False)
    with pytest.raises(KafkaException):
        instance.run_instance(order, 2, 0)
    assert "instance 2: not allowed" in caplog.text
