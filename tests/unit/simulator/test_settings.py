"""Settings from flags and the environment: which takes precedence, and how errors are reported together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simulator.recording import Survey
from simulator.replay import main, shift_ns
from simulator.settings import SettingsError, read_settings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def events(tmp_path: Path) -> str:
    path = tmp_path / "events.json"
    path.write_bytes(b'{"Timestamp": 1}\n')
    return str(path)


def faults(arguments: list[str], environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read_settings(arguments, environment or {})
    return caught.value.errors


def test_the_defaults_are_those_of_the_documentation(
    tmp_path: Path, events: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = read_settings([], {})
    assert (settings.link.host, settings.link.port, settings.link.qos) == ("localhost", 1883, 2)
    assert (settings.link.topic, str(settings.events)) == ("machine/states", "events.json")
    assert (settings.rate_per_s, settings.rounds, settings.rebase) == (1_000, 1, None)
    assert (settings.read_first, settings.skip_first, settings.as_recorded) == (None, 0, False)
    assert settings.link.ca_file is None
    assert settings.link.username is None
    assert settings.link.password is None
    assert settings.journal is None


def test_every_setting_can_come_from_the_environment(tmp_path: Path, events: str) -> None:
    settings = read_settings(
        [],
        {
            "BROKER_HOST": "broker",
            "BROKER_PORT": "8883",
            "EVENT_FILE": events,
            "TOPIC_NAME": "a/b",
            "SAMPLE_RATE": "2.5",
            "READ_FIRST_N": "7",
            "SKIP_FIRST_N": "3",
            "QOS": "0",
            "LOOP": "4",
            "AS_RECORDED": "1",
            "REBASE": "now",
            "JOURNAL_FILE": str(tmp_path / "journal"),
            "MAX_IN_FLIGHT": "5",
            "MQTT_CLIENT_ID": "me",
            "MQTT_VERSION": "3.1.1",
            "MQTT_USERNAME": "user",
            "MQTT_PASSWORD": "secret",
        },
    )
    link = settings.link
    assert (link.host, link.port, link.topic, link.qos) == ("broker", 8883, "a/b", 0)
    assert (link.in_flight_max, link.client_id, link.version) == (5, "me", "3.1.1")
    assert (link.username, link.password) == ("user", "secret")
    assert (settings.rate_per_s, settings.read_first, settings.skip_first) == (2.5, 7, 3)
    assert (settings.rounds, settings.as_recorded, settings.rebase) == (4, True, "now")
    assert settings.journal == tmp_path / "journal"


def test_a_flag_wins_over_the_environment(events: str) -> None:
    settings = read_settings(["--events", events, "--port", "1"], {"BROKER_PORT": "2", "EVENT_FILE": "none"})
    assert settings.link.port == 1


def test_an_empty_variable_counts_as_not_set(events: str) -> None:
    assert read_settings(["--events", events], {"BROKER_PORT": "", "LOOP": ""}).link.port == 1883


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    found = faults(
        ["--events", str(tmp_path / "none.json"), "--rate", "fast", "--qos", "3"],
        {"BROKER_PORT": "70000", "LOOP": "0", "REBASE": "then", "TOPIC_NAME": "a/#", "MQTT_PASSWORD": "x"},
    )
    named = ["BROKER_PORT", "--events", "TOPIC_NAME", "--qos", "--rate", "LOOP", "REBASE", "a password"]
    assert [fault.split(":")[0] for fault in found[:-1]] == named[:-1]
    assert found[-1].startswith(named[-1])


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "1e9", "", " ", "1,5", "MAX"])
def test_a_rate_that_makes_no_sense_is_a_fault(events: str, rate: str) -> None:
    assert faults(["--events", events, "--rate", rate])[0].startswith("--rate: ")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "1.5", "1_000", " 1", "x", "", "9" * 50])
def test_a_port_that_makes_no_sense_is_a_fault(events: str, port: str) -> None:
    assert faults(["--events", events, "--port", port])[0].startswith("--port: ")


def test_the_rate_max_means_no_limit(events: str) -> None:
    assert read_settings(["--events", events, "--rate", "max"], {}).rate_per_s is None


def test_loop_alone_is_endless_and_with_a_number_has_that_many_rounds(events: str) -> None:
    assert read_settings(["--events", events, "--loop"], {}).rounds is None
    assert read_settings(["--events", events, "--loop", "3"], {}).rounds == 3


def test_a_missing_events_file_names_the_way_out(tmp_path: Path) -> None:
    (fault,) = faults(["--events", str(tmp_path / "none.json")])
    assert "does not exist" in fault
    assert "simulator.generate" in fault


def test_a_folder_is_no_events_file(tmp_path: Path) -> None:
    assert "is not a file" in faults(["--events", str(tmp_path)])[0]


def test_a_ca_file_without_certificates_is_a_fault(events: str) -> None:
    assert faults(["--events", events, "--ca-file", events])[0].startswith("--ca-file: ")


def test_a_journal_in_a_missing_folder_is_a_fault(events: str, tmp_path: Path) -> None:
    assert faults(["--events", events, "--journal", str(tmp_path / "no" / "j")])[0].startswith("--journal: ")


def test_the_password_can_come_from_a_file(events: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\nnot this\n")
    arguments = ["--events", events, "--username", "user", "--password-file", str(file)]
    assert read_settings(arguments, {}).link.password == "secret"  # noqa: S105 - a password used only by this test


def test_two_passwords_are_a_fault(events: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret")
    arguments = ["--events", events, "--username", "user", "--password-file", str(file)]
    assert "remove one" in faults(arguments, {"MQTT_PASSWORD": "other"})[0]


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"])
def test_an_unusable_password_file_is_a_fault(events: str, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    arguments = ["--events", events, "--username", "user", "--password-file", str(file)]
    assert faults(arguments)[0].startswith("--password-file: ")
    by_variable = faults(["--events", events, "--username", "user"], {"MQTT_PASSWORD_FILE": str(file)})
    assert by_variable[0].startswith("MQTT_PASSWORD_FILE: ")


def test_each_process_has_a_client_id_of_its_own_unless_given(events: str) -> None:
    ids = {read_settings(["--events", events], {}).link.client_id for _ in range(10)}
    assert len(ids) == 10


def test_wrong_settings_exit_with_2_and_start_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rate", "x", "--port", "0"], {"EVENT_FILE": "/none"}) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 4
    assert "--rate" in said
    assert "EVENT_FILE" in said


def test_help_shows_examples_and_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"], {})
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "examples:" in said
    for name in ("BROKER_HOST", "SAMPLE_RATE", "READ_FIRST_N", "SKIP_FIRST_N", "MQTT_USERNAME"):
        assert name in said


@pytest.mark.parametrize("command", [["simulator/simulator.py"], ["-m", "simulator"], ["-m", "simulator.generate"]])
def test_every_way_to_start_it_works(command: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, *command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "examples:" in ended.stdout


def test_the_script_works_from_any_folder_without_the_package_being_installed(tmp_path: Path) -> None:
    script = ROOT / "simulator" / "simulator.py"
    ended = subprocess.run(
        [sys.executable, str(script), "--events", "none"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "none does not exist" in ended.stderr


@pytest.mark.parametrize("package", ["paho", "msgspec"])
def test_a_missing_package_is_answered_with_make_setup(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv = ['simulator.py'];"
        "import runpy; runpy.run_path('simulator/simulator.py', run_name='__main__')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    assert "make setup" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_rebase_puts_the_first_or_the_last_event_at_the_start() -> None:
    survey = Survey(lines=2, invalid=0, first_ns=100, last_ns=300)
    assert shift_ns(None, survey, 1_000, "ns") == 0
    assert shift_ns("now", survey, 1_000, "ns") == 900
    assert shift_ns("end", survey, 1_000, "ns") == 700
    assert shift_ns("now", Survey(lines=1, invalid=1), 1_000, "ns") == 0


def test_whole_numbers_stay_whole_when_times_are_shifted() -> None:
    survey = Survey(lines=1, first_ns=2_000_000, last_ns=2_000_000)
    assert shift_ns("now", survey, 7_999_999, "ms") == 5_000_000
