"""Does the joiner's command line report errors in one sentence, with an exit status and without a stack trace?"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from joiner.cli import main
from joiner.cli.main import build_parser
from joiner.runtime.kafka.reachability import KafkaAway, reach_kafka
from joiner.runtime.settings import JoinerSettings
from tests.manual_clock import ManualClock

JOIN = '[[join]]\nname = "j"\nleft = "a"\nright = "b"\noutput = "c"\n'


def _leave(status: int) -> NoReturn:
    raise SystemExit(status)


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the current folder
    (tmp_path / "lsb.toml").write_text(JOIN, encoding="utf-8")
    monkeypatch.setattr(main, "leave", _leave)  # the real one would end the test process
    monkeypatch.setattr(main, "_REACH_S", 1.0)
    monkeypatch.setenv("LSB_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")


def status_of(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    return ended.value.code


@pytest.mark.parametrize("arguments", [["status"], ["reset"], ["reset", "--yes"], ["move", "--to", "green"]])
def test_a_kafka_that_is_away_is_told_with_the_way_out(
    arguments: list[str], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert status_of(arguments) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("joiner: Kafka at 127.0.0.1:1 did not answer within 1 s")
    assert "is it running" in message
    assert "kafka.bootstrap_servers" in message
    assert "waiting for Kafka at 127.0.0.1:1" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--to", "Green"], "not a site"),
        (["--to", "green", "--units", "one"], "not a list of units"),
        (["--to", "green", "--units", "1,"], "not a list of units"),
        (["--to", "green", "--timeout", "5"], "5"),
        ([], "--to"),
    ],
)
def test_what_a_move_cannot_mean_is_status_2(
    arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["move", *arguments]) == 2
    assert what in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["status", "--replica", "1"], "there is no replica 1, because application.replicas is 1"),
        (["run", "--replica", "3"], "'3' is not a replica: use 0 to 2"),
        (["run", "--replica", "one"], "'one' is not a replica"),
        (["repartition", "--replica", "1"], "unrecognized arguments"),
    ],
)
def test_a_replica_that_does_not_exist_is_status_2(
    arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(arguments) == 2
    assert what in capsys.readouterr().err.splitlines()[-1]


def test_a_command_for_a_replica_is_about_the_topics_of_that_replica(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lsb.toml").write_text(f"[application]\nreplicas = 2\n{JOIN}", encoding="utf-8")
    asked: list[str] = []

    def show_status(settings: JoinerSettings, *_given: object, **_options: object) -> int:
        asked.append(settings.state_topic)
        return 0

    monkeypatch.setattr(main, "reach_kafka", lambda *_given: None)
    monkeypatch.setattr(main, "show_status", show_status)
    for arguments in ([], ["--replica", "0"], ["--replica", "1"]):
        assert status_of(["status", *arguments]) == 0
    assert asked == ["lsb.state", "lsb.state", "lsb.r1.state"]
    for variable in ("", "1"):
        monkeypatch.setenv("LSB_REPLICA", variable)
        assert status_of(["status"]) == 0
    assert status_of(["status", "--replica", "0"]) == 0
    assert asked[3:] == ["lsb.state", "lsb.r1.state", "lsb.state"]


def test_a_variable_that_names_no_replica_is_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LSB_REPLICA", "second")
    assert status_of(["status"]) == 2
    assert "argument --replica: 'second' is not a replica: use 0 to 2" in capsys.readouterr().err


def test_the_library_tells_of_a_kafka_that_is_away_once(caplog: pytest.LogCaptureFixture) -> None:
    assert status_of(["status"]) == 1
    assert sum(record.name == "joiner.kafka" for record in caplog.records) <= 1


@pytest.mark.parametrize("command", ["status", "reset", "run"])
def test_a_setting_that_the_kafka_library_refuses_is_status_2(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSB_KAFKA__CLIENT", '{"no.such":1}')
    monkeypatch.setattr(main, "end_on_signals", lambda _stop: None)
    assert status_of([command]) == 2
    assert 'No such configuration property: "no.such"; correct kafka.client' in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "reset", "run"])
def test_a_joining_function_that_cannot_be_loaded_is_status_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unfinished_join.py").write_text("def f(:\n", encoding="utf-8")
    (tmp_path / "lsb.toml").write_text(JOIN + 'function = "unfinished_join:f"\n', encoding="utf-8")
    assert status_of([command]) == 2
    assert "unfinished_join.py line 1: SyntaxError" in capsys.readouterr().err


def test_a_stop_while_kafka_is_waited_for_is_no_stack_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "reach_kafka", interrupt)
    assert status_of(["status"]) == 1
    assert capsys.readouterr().err == "joiner: stopped\n"


class _Admin(AdminClient):
    """Responds from the ``answers``-th request on. Its clock advances only while a request waits."""

    def __init__(self, answers: int) -> None:
        super().__init__({})
        self.answers, self.clock, self.waits_s = answers, ManualClock(), list[float]()

    def list_topics(self, *, timeout: float) -> None:  # type: ignore[override] # the only signature used here
        self.waits_s.append(timeout)
        if len(self.waits_s) < self.answers:
            self.clock.now_s += timeout
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - the public name of the constant


@pytest.mark.parametrize(("answers", "lines"), [(1, 0), (2, 1), (4, 1)])
def test_waiting_is_told_once_and_only_where_it_lasts(
    answers: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "joiner.runtime.kafka.reachability")
    admin = _Admin(answers)
    reach_kafka(admin, "a:1", 10.0, admin.clock)
    assert len(admin.waits_s) == answers
    assert len([record for record in caplog.records if record.name == "joiner.runtime.kafka.reachability"]) == lines


def test_kafka_is_waited_for_as_long_as_was_said_in_short_waits() -> None:
    admin = _Admin(answers=1000)
    with pytest.raises(KafkaAway, match="a:1 did not answer within 10 s"):
        reach_kafka(admin, "a:1", 10.0, admin.clock)
    assert sum(admin.waits_s) == 10.0
    assert max(admin.waits_s) <= 3.0


@pytest.mark.parametrize(
    ("given", "present", "value"), [(["--placement", "green"], "site", "green"), (["--take"], "force_claim", True)]
)
def test_a_former_flag_is_accepted_with_a_warning(
    given: list[str], present: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = build_parser()
    options = parser.parse_args(["run", *given])
    assert getattr(options, present) == value
    assert f"{given[0]} is now called --{present.replace('_', '-')};" in capsys.readouterr().err
    assert given[0] not in parser.format_help()
