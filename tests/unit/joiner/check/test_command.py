"""Can the tester be started as a script and as a module, and does its exit status reflect the outcome?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from db_connector.settings import ConnectorSettings
from joiner.check.command import VerifySettings, main

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("command", [["joiner/tester.py"], ["-m", "joiner.tester"]])
def test_it_starts_as_a_script_and_as_a_module(command: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, *command, "--random", "3"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "100 alternating records" in shown.stdout
    assert shown.stdout.rstrip().splitlines()[-1].startswith("RIGHT")


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["--seed", "x"], ["--random", "-1"], ["verify", "--timeout", "0"], ["verify", "--wrong"]],
)
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["verify", "--help"]])
def test_help_has_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "examples:\n  " in capsys.readouterr().out


def test_wrong_settings_are_status_2_and_named_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text('[topics]\npartitions = 0\n[application]\nname = "a b"\n', encoding="utf-8")
    assert main(["verify", "--config", str(file)]) == 2
    shown = capsys.readouterr().err
    assert "topics.partitions" in shown
    assert "application.name" in shown
    assert "join" in shown


def test_a_joining_function_that_does_not_exist_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lsb.toml"
    join = '[[join]]\nname = "j"\nleft = "a"\nright = "b"\noutput = "c"\nfunction = "nowhere:none"\n'
    file.write_text(join, encoding="utf-8")
    assert main(["verify", "--config", str(file)]) == 2
    assert "'j'" in capsys.readouterr().err


JOIN = '[[join]]\nname = "j"\nleft = "a"\nright = "b"\noutput = "c"\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Valid settings that name a Kafka broker that is not running."""
    monkeypatch.setenv("LSB_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    file = tmp_path / "lsb.toml"
    file.write_text(JOIN, encoding="utf-8")
    return str(file)


@pytest.fixture
def _no_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object, **__: object) -> None:
        pytest.fail("Kafka was read before the files were checked")

    monkeypatch.setattr("joiner.check.command.KafkaEvidence", ask)


def test_a_kafka_that_is_away_is_an_error_without_a_stack_trace(
    config: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["verify", "--config", config, "--timeout", "1"]) == 1
    assert "Kafka at 127.0.0.1:1 did not answer within 1 s" in capsys.readouterr().err
    assert sum(record.name == "joiner.check.found.kafka_log" for record in caplog.records) <= 2


def test_a_setting_that_the_kafka_library_refuses_is_status_2(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSB_KAFKA__CLIENT", '{"no.such":1}')
    assert main(["verify", "--config", config]) == 2
    assert 'No such configuration property: "no.such"; correct kafka.client' in capsys.readouterr().err


@pytest.mark.usefixtures("_no_kafka")
def test_files_that_cannot_be_used_are_told_together_before_anything_is_checked(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "none"
    assert main(["verify", "--config", config, "--events", str(absent), "--json", str(absent / "x.json")]) == 2
    errors = capsys.readouterr().err
    assert f"--events: {absent} does not exist" in errors
    assert f"--json: there is no folder {absent}" in errors
    assert main(["verify", "--config", config, "--events", str(tmp_path), "--json", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert f"--events: {tmp_path} is a folder" in errors
    assert f"--json: {tmp_path} cannot be written" in errors


def test_a_check_that_is_not_made_leaves_no_empty_report(config: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert main(["verify", "--config", config, "--timeout", "1", "--json", str(report)]) == 1
    assert not report.exists()


@pytest.mark.usefixtures("_no_kafka")
def test_a_secret_that_cannot_be_read_is_told_before_anything_is_checked(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSB_INFLUXDB__TOKEN_FILE", str(tmp_path / "none"))
    assert main(["verify", "--config", config, "--influx"]) == 2
    assert "none cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--random", "-1"], "argument --random: '-1' is not a non-negative integer"),
        (["--random", "many"], "'many' is not a non-negative integer"),
        (["verify", "--examples", "1.5"], "'1.5' is not a non-negative integer"),
        (["verify", "--timeout", "0"], "'0' is not a number of seconds greater than 0 and less than 86400"),
        (["verify", "--timeout", "nan"], "'nan' is not a number of seconds greater than 0 and less than 86400"),
        (["verify", "--timeout", "soon"], "'soon' is not a number of seconds greater than 0 and less than 86400"),
    ],
)
def test_text_that_is_no_number_in_the_range_is_refused_with_the_range(
    arguments: list[str], allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert allowed in capsys.readouterr().err


def test_the_measurement_is_the_one_that_the_database_connector_writes() -> None:
    ours = type(VerifySettings.model_fields["db_connector"].default)
    found, wanted = (model.model_json_schema()["properties"]["measurement"] for model in (ours, ConnectorSettings))
    assert found == wanted
    assert {"default", "pattern"} <= wanted.keys()


@pytest.mark.usefixtures("_no_kafka")
def test_a_measurement_that_no_connector_writes_is_status_2(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSB_DB_CONNECTOR__MEASUREMENT", 'a"b')
    assert main(["verify", "--config", config]) == 2
    assert "db_connector.measurement" in capsys.readouterr().err


def test_a_joining_function_in_the_current_folder_is_found_by_the_script(tmp_path: Path) -> None:
    (tmp_path / "script_join.py").write_text("def f(left, right):\n    return left.result\n", encoding="utf-8")
    (tmp_path / "lsb.toml").write_text(JOIN + 'function = "script_join:f"\n', encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, str(ROOT / "joiner/tester.py"), "verify", "--json", str(tmp_path / "none" / "x")],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 2
    # The functions are loaded before this check.
    assert shown.stderr.startswith("--json: there is no folder"), shown.stderr
