"""Names from the previous release are accepted, with a warning that gives the current name."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.settings import load_settings
from connector.settings import Settings as ConnectorService
from joiner.runtime.settings import JoinerSettings, SparkSettings

FORMER = """
[application]
placement = "green"
ahead_max = "2h"

[[join]]
name = "j"
left = "a"
right = "b"
output = "c"
progress = "partition"

[connector]
ahead_max = "3h"
"""
HOUR_NS = 3600 * 10**9


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("LSB_APPLICATION__PLACEMENT", "LSB_APPLICATION__SITE"):
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "lsb.toml"
    path.write_text(FORMER, encoding="utf-8")
    return path


def test_former_names_of_settings_mean_the_present_ones(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = load_settings(JoinerSettings, file)
    assert (settings.application.site, settings.application.max_future_skew) == ("green", 2 * HOUR_NS)
    assert settings.join[0].watermark_scope == "partition"
    assert load_settings(ConnectorService, file).connector.max_future_skew == 3 * HOUR_NS
    for former, present in (
        ("application.placement", "application.site"),
        ("application.ahead_max", "application.max_future_skew"),
        ("join.progress", "join.watermark_scope"),
        ("connector.ahead_max", "connector.max_future_skew"),
    ):
        assert caplog.text.count(f"{former} is now called {present}") == 1


def test_former_names_of_variables_mean_the_present_settings(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_APPLICATION__PLACEMENT", "blue")
    assert load_settings(JoinerSettings, file).application.site == "blue"


def test_the_present_name_counts_where_both_are_given(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LSB_APPLICATION__SITE", "blue")
    assert load_settings(JoinerSettings, file).application.site == "blue"
    assert "application.placement is ignored because application.site is also given" in caplog.text


@pytest.mark.parametrize("name", ["checkpoint", "batch_records_max"])
@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_setting_that_no_longer_exists_is_ignored_with_a_warning(
    name: str, source: str, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if source == "environment":
        monkeypatch.setenv(f"LSB_SPARK__{name.upper()}", "7")
    else:
        file.write_text(f"{FORMER}\n[spark]\n{name} = 7\n", encoding="utf-8")
    assert load_settings(JoinerSettings, file).spark == SparkSettings()
    assert caplog.text.count(f"spark.{name} no longer has any effect") == 1


def test_a_running_application_keeps_its_fingerprint(file: Path, tmp_path: Path) -> None:
    present = tmp_path / "present.toml"
    renamed = FORMER.replace("ahead_max", "max_future_skew").replace("placement", "site")
    present.write_text(renamed.replace("progress", "watermark_scope"), encoding="utf-8")
    fingerprints = {load_settings(JoinerSettings, path).fingerprint() for path in (file, present)}
    # The fingerprint of release 0.1.0 for the same file.
    assert fingerprints == {"c0a1950403b31d5ea043a0f2ac2d168e08781d3f371c98f80b6db587f94b763a"}
