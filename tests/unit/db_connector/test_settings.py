"""The connector's settings and command line: errors are reported together, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.settings import SettingsError, load_settings
from db_connector.__main__ import run
from db_connector.progress import Journal, Progress, RateLimit
from db_connector.settings import ConnectorSettings, DbConnectorSettings


def test_the_defaults_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(DbConnectorSettings)
    assert settings.db_connector == ConnectorSettings()
    assert settings.db_connector.linger == 50_000_000
    assert not settings.db_connector.gzip


def test_the_merged_results_are_read_if_that_is_set() -> None:
    read = [
        DbConnectorSettings.model_validate({"db_connector": {"merged": one}}).results_topic for one in (False, True)
    ]
    assert read == ["machine.out", "machine.out.merged"]


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(
        "[db_connector]\nbatch_records = 0\nlinger = '1h'\nmeasurement = 'a b'\ngroup = ''\nretries = 1\n"
        "request_timeout = '1ms'\n"
    )
    with pytest.raises(SettingsError) as error:
        load_settings(DbConnectorSettings, file)
    for name in ("batch_records", "linger", "measurement", "group", "retries", "request_timeout"):
        assert f"db_connector.{name}" in str(error.value)
    assert "from 1ms to 15s" in str(error.value)


@pytest.mark.parametrize("name", [".", "..", "_a", "-", "a b", "a/b", "a" * 201])
def test_names_begin_with_a_letter_or_digit_and_are_valid_in_kafka(tmp_path: Path, name: str) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(f"[db_connector]\ngroup = {name!r}\ninstance = {name!r}\n")
    with pytest.raises(SettingsError) as error:
        load_settings(DbConnectorSettings, file)
    group, instance = str(error.value).splitlines()
    wanted = "must be 1 to 200 characters from A-Z, a-z, 0-9, '.', '_' and '-', and must begin with a letter or digit"
    assert f"{file}: db_connector.group: {wanted}" in group
    assert f"{file}: db_connector.instance: {wanted}" in instance


def test_wrong_settings_end_the_command_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text("[db_connector]\nbatch_records = 0\n")
    assert run(["--config", str(file)]) == 2
    assert "batch_records" in capsys.readouterr().err


def test_a_journal_that_cannot_be_written_ends_the_command_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text("")
    journal = tmp_path / "missing" / "journal.tsv"
    assert run(["--config", str(file), "--journal", str(journal)]) == 2
    assert str(journal) in capsys.readouterr().err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_the_documentation_names_every_setting() -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
    text = page.partition("\n## db_connector\n")[2].partition("\n## ")[0]
    assert [name for name in ConnectorSettings.model_fields if f"`{name}`" not in text] == []


def test_the_journal_appends_a_line_for_each_span(tmp_path: Path) -> None:
    path = tmp_path / "journal.tsv"
    for _ in range(2):
        with Journal(path) as journal:
            journal.write(123, [(0, 5, 9), (3, 7, 7)])
    assert path.read_text() == "123\t0\t5\t9\n123\t3\t7\t7\n" * 2


def test_progress_is_logged_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = [0.0]
    progress = Progress(lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        progress.count(100, 0)
        progress.report_when_due(lambda: 7)
    assert [record.getMessage() for record in caplog.records] == [
        "1100 results written, 110/s, 0 dead letters, lag 7 records",
        "2100 results written, 100/s, 0 dead letters, lag 7 records",
    ]


def test_seldom_is_due_once_in_its_interval() -> None:
    now = [0.0]
    limit = RateLimit(10.0, lambda: now[0])
    due = []
    for second in range(25):
        now[0] = float(second)
        due.append(limit.allows())
    assert [second for second, is_due in enumerate(due) if is_due] == [0, 10, 20]
