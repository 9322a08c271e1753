"""Does the tester start as a script and as a module, and does its exit status tell what happened?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joiner.check.command import main

ROOT = Path(__file__).parents[2]


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


def test_a_kafka_that_is_away_is_an_error_without_a_stack_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSB_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr("broker.topics._TIMEOUT_S", 1.0)
    file = tmp_path / "lsb.toml"
    file.write_text('[[join]]\nname = "j"\nleft = "a"\nright = "b"\noutput = "c"\n', encoding="utf-8")
    assert main(["verify", "--config", str(file)]) == 1
    assert "Kafka at 127.0.0.1:1 does not answer" in capsys.readouterr().err
