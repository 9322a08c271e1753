"""What does `lsb-init` print, write and return?"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from joiner.cli.proposal import command
from joiner.cli.proposal.command import QUESTION, run
from joiner.cli.proposal.settings import try_out
from joiner.cli.proposal.sources import Sampling, read_file
from joiner.mapping.documents import MESSAGE_BYTES_MAX

ROOT = Path(__file__).parents[5]


def recorded(folder: Path, name: str, count: int = 30, **fields: object) -> str:
    """Write a file with a message in each line. Return its path."""
    lines = [{"host": f"m{number % 3}", "ts": 1_700_000_000_000 + number, "v": 0} | fields for number in range(count)]
    lines = [line | {name: number} for number, line in enumerate(lines)]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def named(folder: Path, name: str, value: str) -> str:
    """Write a file with a message in each line, whose value has any name. Return its path."""
    path = folder / f"{name}.jsonl"
    lines = [{"host": "m1", "ts": 1_700_000_000_000 + number, value: number} for number in range(9)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def test_the_settings_go_to_the_terminal_and_what_was_found_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([recorded(tmp_path, "speed"), recorded(tmp_path, "torque")]) == 0
    printed = capsys.readouterr()
    assert [one["output"] for one in tomllib.loads(printed.out)["join"]] == ["speed_torque"]
    assert "speed (speed): 30 records in 30 messages, 3 things" in printed.err


def test_an_existing_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources, output = [recorded(tmp_path, "speed"), recorded(tmp_path, "torque")], tmp_path / "lsb.toml"
    assert run([*sources, "--output", str(output)]) == 0
    before = output.read_text()
    assert tomllib.loads(before)["join"]
    assert run([*sources, "--output", str(output)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert output.read_text() == before


def test_a_file_that_somebody_else_writes_meanwhile_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, output = [recorded(tmp_path, "speed"), recorded(tmp_path, "torque")], tmp_path / "new.toml"

    def other_first(*given: Any) -> Any:
        output.write_text("mine")
        return try_out(*given)

    monkeypatch.setattr(command, "try_out", other_first)
    assert run([*sources, "--output", str(output)]) == 1
    assert "File exists" in capsys.readouterr().err
    assert output.read_text() == "mine"


def test_a_link_that_points_nowhere_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(tmp_path / "target.toml")
    assert run([recorded(tmp_path, "speed"), recorded(tmp_path, "torque"), "--output", str(link)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert not (tmp_path / "target.toml").exists()


def test_a_folder_that_does_not_exist_is_told_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after an hour of listening."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LSB_MQTT__PORT", "9")
    assert run(["--mqtt", "a", "--output", "nowhere/new.toml"]) == 2
    assert "no file can be written to the folder nowhere" in capsys.readouterr().err


def test_a_half_written_file_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    usual = Path.open

    def opened(path: Path, mode: str = "r", **more: Any) -> Any:
        if mode != "x":
            return usual(path, mode, **more)
        path.touch()
        return Full()

    sources = [recorded(tmp_path, "speed"), recorded(tmp_path, "torque")]
    monkeypatch.setattr(Path, "open", opened)
    assert run([*sources, "--output", str(tmp_path / "new.toml")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert not (tmp_path / "new.toml").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_one_line(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_given: Any) -> Any:
        signal.raise_signal(number)
        raise AssertionError("not reached")

    monkeypatch.setattr(command, "try_out", interrupted)
    before = signal.getsignal(number)
    output = tmp_path / "new.toml"
    assert run([recorded(tmp_path, "speed"), recorded(tmp_path, "torque"), "--output", str(output)]) == 1
    assert capsys.readouterr() == ("", "lsb-init: stopped\n")
    assert not output.exists()
    assert signal.getsignal(number) == before


def test_a_question_has_a_status_of_its_own_and_can_be_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [recorded(tmp_path, "speed", ts=86_400), recorded(tmp_path, "torque", ts=86_400)]
    assert run(sources) == QUESTION
    printed = capsys.readouterr()
    assert not printed.out
    assert "lsb-init: speed: in which unit is the time $.ts? 86400 is 1970-01-02T00:00:00Z if in s" in printed.err
    assert run([*sources, "--time", "$.ts", "--time-unit", "s"]) == 0
    assert 'time_unit = "s"' in capsys.readouterr().out


def test_only_the_wanted_number_of_lines_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([recorded(tmp_path, "speed"), recorded(tmp_path, "torque"), "--samples", "12"]) == 0
    assert "12 records in 12 messages" in capsys.readouterr().err


def test_a_file_without_line_breaks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plant.json"
    path.write_bytes(b" " * (MESSAGE_BYTES_MAX + 1))
    assert run([str(path)]) == 1
    assert "line 1 has more than 1048576 bytes; a file must have one message in each line" in capsys.readouterr().err


def test_no_more_of_a_file_is_read_than_its_share(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n" * 100)
    assert len(read_file(tmp_path / "x.jsonl", Sampling(1_000, 30)).samples) == 10


def test_the_topic_of_a_file_is_named_after_it(tmp_path: Path) -> None:
    (tmp_path / "plant four (new).json").write_text("{}\n")
    assert read_file(tmp_path / "plant four (new).json", Sampling(5)).topic == "plant_four_new_"
    for name, topic in (("x" * 240, "x" * 200), ("..jsonl", "data")):
        (tmp_path / name).write_text("{}\n")
        assert read_file(tmp_path / name, Sampling(5)).topic == topic


def test_a_path_that_no_message_has_is_told_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [recorded(tmp_path, "speed"), recorded(tmp_path, "torque")]
    assert run([*sources, "--time", "$.when", "--id", "$.x", "--output", str(tmp_path / "new.toml")]) == 2
    assert "no message has a field $.when, $.x" in capsys.readouterr().err
    assert not (tmp_path / "new.toml").exists()


def test_each_source_takes_the_first_path_that_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = []
    for name, key, time in (("speed", "wzm", "a"), ("torque", "presse", "b")):
        path = tmp_path / f"{name}.jsonl"
        lines = ({key: f"m{number % 3}", time: 1000 + number, name: number} for number in range(30))
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        sources.append(str(path))
    assert run(sources) == QUESTION
    given = ["--key", "$.wzm", "--key", "$.presse", "--time", "$.a", "--time", "$.b", "--time-unit", "s"]
    assert run([*sources, *given]) == 0
    streams = tomllib.loads(capsys.readouterr().out)["stream"]
    assert [(one["key"], one["time"]) for one in streams] == [("$.wzm", "$.a"), ("$.presse", "$.b")]


def test_files_of_one_thing_can_have_a_key_in_quotes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name in ("speed", "torque"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(
            "".join(f'{{"ts": {1_700_000_000_000 + number}, "{name}": {number}}}\n' for number in range(30))
        )
        paths.append(str(path))
    assert run(paths) == QUESTION
    assert "--key \"'machine'\"" in capsys.readouterr().err
    assert run([*paths, "--key", "'machine'"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["topics"] == {"partitions": 1}


def test_a_file_has_no_time_of_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([recorded(tmp_path, "speed"), "--time", "kafka.timestamp"]) == 1
    assert "a file has no kafka.timestamp" in capsys.readouterr().err


def test_a_misspelt_file_is_not_looked_for_in_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (str(tmp_path / "sped.jsonl"), ""):
        assert run([name]) == 1
        assert "there is no file" in capsys.readouterr().err


def test_blank_lines_and_a_byte_order_mark_are_no_messages(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes("\ufeff{}\r\n\n {} \n".encode())
    assert [one.value for one in read_file(tmp_path / "x.jsonl", Sampling(9)).samples] == [b"{}", b"{}"]


def test_what_is_in_messages_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([recorded(tmp_path, "speed", host="m\x1b[31m"), recorded(tmp_path, "torque", host="m\x1b[31m")]) == 0
    assert "\x1b" not in "".join(capsys.readouterr())
    name = "\u009b31m\u202e\x7f"
    assert run([named(tmp_path, "speed", name), named(tmp_path, "torque", name)]) == 0
    printed = capsys.readouterr()
    assert all(line.isprintable() for line in (printed.out + printed.err).split("\n"))
    assert any(name in one["name"] for one in tomllib.loads(printed.out)["stream"])


def test_the_file_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    sources = [recorded(tmp_path, "speed", é="a"), recorded(tmp_path, "torqu\u00e9")]
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "joiner.cli.proposal", *sources]
    printed = subprocess.run(program, env=environment, capture_output=True, timeout=60, check=True)
    subprocess.run([*program, "--output", str(tmp_path / "new.toml")], env=environment, timeout=60, check=True)
    assert tomllib.loads(printed.stdout.decode()) == tomllib.loads((tmp_path / "new.toml").read_text(encoding="utf-8"))


def test_files_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    assert run([recorded(tmp_path, "speed"), recorded(tmp_path / "a", "speed")]) == 1
    assert "several sources would be the topic speed: rename the files" in capsys.readouterr().err


def test_a_file_and_a_topic_of_one_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Kafka is asked: there is none here."""
    monkeypatch.chdir(tmp_path)
    assert run([recorded(tmp_path, "speed"), "speed"]) == 1
    assert "several sources would be the topic speed" in capsys.readouterr().err


def test_the_partitions_of_files_are_asked_for_and_can_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [recorded(tmp_path, "speed"), recorded(tmp_path, "torque")]
    assert run(sources) == 0
    assert "files do not tell how many partitions their topics have: use --partitions N" in capsys.readouterr().err
    assert run([*sources, "--partitions", "3"]) == 0
    printed = capsys.readouterr()
    assert tomllib.loads(printed.out)["topics"] == {"partitions": 3}
    assert "--partitions" not in printed.err


def test_a_file_of_senml_is_one_question_with_the_lines_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "packs.jsonl"
    path.write_text('[{"bn": "urn:dev:ow:1:", "bt": 1.7e9, "n": "temperature", "v": 21.5}]\n' * 3)
    assert run([str(path)]) == QUESTION
    printed = capsys.readouterr()
    assert not printed.out
    assert "packs: on which MQTT topics are its messages? They are SenML" in printed.err
    assert printed.err.splitlines()[1:] == [
        "lsb-init: [[connector.topic]]",
        'lsb-init: format = "senml"',
        'lsb-init: topic = "senml/#"',
    ]


@pytest.mark.parametrize(("name", "content"), [("t.csv", b"ts,rpm\n1,2\n"), ("t.parquet", b"PAR1\x15\x04\x15\n\x00")])
def test_a_table_is_told_to_be_converted_first(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert run([str(tmp_path / name)]) == 1
    assert "to use a table, such as CSV or Parquet, convert and import it first" in capsys.readouterr().err
    (tmp_path / "broken.json").write_text('{"a": 1\n[1\n')
    assert run([str(tmp_path / "broken.json")]) == 1
    assert "convert" not in capsys.readouterr().err


def test_a_settings_file_that_does_not_exist_is_told_although_files_need_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [recorded(tmp_path, "speed"), recorded(tmp_path, "torque")]
    assert run([*sources, "--config", str(tmp_path / "nowhere.toml")]) == 2
    assert "nowhere.toml does not exist" in capsys.readouterr().err


def test_without_an_mqtt_broker_the_error_says_where_it_was_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LSB_MQTT__PORT", "9")
    assert run(["--mqtt", "senml/#"]) == 1
    assert "MQTT at 127.0.0.1:9 cannot be reached: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x", "--samples", "0"],
        ["x", "--key", "machine"],
        ["x", "--time-unit", "h"],
        ["x", "--config", "nowhere.toml"],
        ["x", "--registry", "registry:8081"],
        ["x", "--registry", "http://me:secret@registry:8081"],
        ["x", "--partitions", "1001"],
        ["--mqtt", "a/#/b"],
        ["--mqtt", "$share/group/a"],
        ["--mqtt", "{thing}/a"],
        ["--mqtt", "a", "--listen", "0"],
    ],
)
def test_invalid_arguments_have_status_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status: object = run(arguments)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert "Traceback" not in capsys.readouterr().err
