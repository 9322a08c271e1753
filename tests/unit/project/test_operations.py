"""Do the compose file, the dashboards, the alerts and their page use names that exist?"""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from broker.compose import environment
from broker.settings import load_settings
from grafana.generate import DASHBOARDS, FOLDER, rendered
from joiner.runtime.settings import JoinerSettings

ROOT = Path(__file__).parents[3]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
ALERTS = (ROOT / "grafana/alerts.yml").read_text()
_METRIC = re.compile(r"\blsb_[a-z_]+\b")


def documented_metrics() -> set[str]:
    """Return the metrics in docs/metrics.md, with the three series of each histogram."""
    rows = re.findall(r"^\| `(lsb_\w+)` \| (\w+)", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    ends = ("_bucket", "_sum", "_count")
    return {name for name, _ in rows} | {name + end for name, kind in rows if kind == "histogram" for end in ends}


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_a_dashboard_is_what_its_program_writes(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text() == rendered(name), "regenerate it: make dashboards"


def test_there_is_no_dashboard_that_no_program_writes() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(DASHBOARDS)


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_every_metric_that_a_panel_shows_exists(name: str) -> None:
    assert set(_METRIC.findall(rendered(name))) - documented_metrics() == set()


def test_every_metric_that_an_alert_asks_for_exists() -> None:
    assert set(_METRIC.findall(ALERTS)) - documented_metrics() == set()


def test_every_alert_is_provoked_by_a_test_and_has_its_part_of_the_runbook() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", ALERTS))
    assert len(alerts) == 8
    assert set(re.findall(r"alertname: (\w+)", (ROOT / "grafana/alerts_test.yml").read_text())) == alerts
    in_the_stack = (ROOT / "tests/compose/test_alerts.py").read_text()
    assert set(re.findall(r"\.fires\(\"(\w+)\"", in_the_stack)) == alerts
    assert set(re.findall(r"^### (\w+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)) == alerts
    assert set(re.findall(r"runbook_url: docs/operations.md#(\w+)", ALERTS)) == {name.lower() for name in alerts}


def test_every_alert_fires_by_its_cause_and_clears_again() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run(
        [promtool, "test", "rules", str(ROOT / "grafana/alerts_test.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", ["lsb.toml", "broker/compose/lsb.toml"])
def test_the_dashboard_of_machine_data_serves_any_joins(path: str) -> None:
    shown = rendered("machine_data")
    settings = load_settings(JoinerSettings, ROOT / path)
    streams = [stream.quantity for operator in settings.operators for stream in operator.streams.values()]
    assert settings.align
    for name in (*streams, *(join.output for join in settings.join), *(align.name for align in settings.align)):
        assert str(name) not in shown, "join names are selected with a variable"
    assert {one["name"] for one in json.loads(shown)["templating"]["list"]} == {"thing", "quantity"}


def test_no_panel_of_machine_data_asks_for_all_points_of_its_range() -> None:
    for panel in json.loads(rendered("machine_data"))["panels"]:
        for target in panel["targets"]:
            assert "aggregateWindow(every: v.windowPeriod" in target["query"] or "tail(n: 200)" in target["query"]


def test_every_port_is_published_on_the_loopback_only() -> None:
    published = re.findall(r"^ +- (\S+:\d+)$", COMPOSE, re.MULTILINE)
    assert len(published) == 5
    assert [port for port in published if not port.startswith("127.0.0.1:${LSB_")] == []


def test_the_container_of_the_stage_has_only_the_instance_that_prometheus_asks() -> None:
    (stage,) = re.findall(r"^  spark:\n((?:    .*\n|\n)+)", COMPOSE, re.MULTILINE)
    assert re.findall(r'LSB_SPARK__INSTANCES: "(\d+)"', stage) == ["1"]


def test_every_image_has_a_version_and_can_be_overridden() -> None:
    images = re.findall(r"^ +image: (.+)$", COMPOSE, re.MULTILINE)
    assert len(images) == 7
    assert [
        image for image in images if not re.fullmatch(r"\$\{LSB_(?:\w+_)?IMAGE:-[\w/.-]+:v?\d[\w.]*\}", image)
    ] == []


def test_passwords_are_made_once_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert environment.main(tmp_path) == 0
    folder = tmp_path / environment.FOLDER
    first = {path.name: path.read_text() for path in folder.iterdir()}
    assert environment.main(tmp_path) == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == first
    told = capsys.readouterr().out
    assert not any(secret.strip() in told for secret in first.values())
    assert len(set(first.values())) == 5
    assert min(len(secret.strip()) for secret in first.values()) >= 32
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (tmp_path / ".env").read_text().endswith("LSB_SECRETS=./.lsb/secrets\n")


def test_every_secret_of_the_compose_file_is_made(tmp_path: Path) -> None:
    environment.main(tmp_path)
    named = set(re.findall(r"\}/(\w+)$", COMPOSE, re.MULTILINE))
    assert named == {path.name for path in (tmp_path / environment.FOLDER).iterdir()}


def test_a_folder_that_cannot_be_written_is_told_without_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".lsb").write_text("a file")
    assert environment.main(tmp_path) == 1
    assert "make env" in capsys.readouterr().err


def test_a_dashboard_names_its_data_sources_as_they_are_provisioned() -> None:
    provisioned = set(
        re.findall(r"uid: (\w+)", (ROOT / "grafana/provisioning/datasources/datasources.yml").read_text())
    )
    for name in DASHBOARDS:
        for panel in json.loads(rendered(name))["panels"]:
            assert panel["datasource"]["uid"] in provisioned
            assert {target["datasource"]["uid"] for target in panel["targets"]} <= provisioned
