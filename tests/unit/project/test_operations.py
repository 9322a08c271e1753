"""Do the compose file, the dashboards, the alerts and their page use names that exist?"""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from broker.compose import environment
from broker.settings import load_settings
from control.access.users import Users, read_users
from control.roles import Role
from control.settings import Settings as ControlService
from control.settings import check_access
from grafana.generate import DASHBOARDS, FOLDER, rendered
from joiner.runtime.settings import JoinerSettings

ROOT = Path(__file__).parents[3]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
PROMETHEUS = yaml.safe_load((ROOT / "grafana/prometheus.yml").read_text())
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
    assert len(published) == 6
    assert [port for port in published if not port.startswith("127.0.0.1:${LSB_")] == []


def test_the_container_of_the_stage_has_only_the_instance_that_prometheus_asks() -> None:
    (stage,) = re.findall(r"^  spark:\n((?:    .*\n|\n)+)", COMPOSE, re.MULTILINE)
    assert re.findall(r'LSB_SPARK__INSTANCES: "(\d+)"', stage) == ["1"]


def test_every_image_has_a_version_and_can_be_overridden() -> None:
    images = re.findall(r"^ +image: (.+)$", COMPOSE, re.MULTILINE)
    assert len(images) == 8
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
    assert len(set(first.values())) == 9
    assert min(len(secret.strip()) for secret in first.values()) >= 32
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (tmp_path / ".env").read_text().endswith("LSB_SECRETS=./.lsb/secrets\n")


def test_every_secret_of_the_compose_file_is_made(tmp_path: Path) -> None:
    environment.main(tmp_path)
    named = set(re.findall(r"\}/(\w+)$", COMPOSE, re.MULTILINE))
    of_a_person = {"control_password"}
    assert named | of_a_person == {path.name for path in (tmp_path / environment.FOLDER).iterdir()}


def test_every_container_has_no_rights_a_root_that_is_read_only_and_a_limit_of_memory() -> None:
    services = yaml.safe_load(COMPOSE)["services"]
    assert "control" in services
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert not service.get("privileged"), name
        assert "healthcheck" in service or name == "simulator", name


def test_each_secret_is_given_only_to_the_services_that_need_it() -> None:
    services = yaml.safe_load(COMPOSE)["services"]
    found = {name: set(service.get("secrets", ())) for name, service in services.items()}
    assert {name: secrets for name, secrets in found.items() if secrets} == {
        "mqtt": {"mqtt_passwords"},
        "influxdb": {"influxdb_password", "influxdb_token"},
        "connector": {"mqtt_password"},
        "joiner": {"registry_password"},
        "spark": {"registry_password"},
        "db_connector": {"influxdb_token"},
        "simulator": {"mqtt_password"},
        "control": {"control_users", "registry_password"},
        "prometheus": {"control_token"},
        "grafana": {"grafana_password", "influxdb_token"},
    }


def test_the_control_service_of_the_containers_is_open_to_its_users_and_prometheus_alone(tmp_path: Path) -> None:
    assert environment.main(tmp_path) == 0
    folder = tmp_path / environment.FOLDER
    control = load_settings(ControlService, ROOT / "broker/compose/lsb.toml").control
    check_access(control)
    assert control.users_file == Path("/run/secrets/control_users")
    users = Users(folder / "control_users")
    admin = users.with_password("admin", (folder / "control_password").read_text().strip())
    program = users.with_token((folder / "control_token").read_text().strip())
    assert admin is not None
    assert program is not None
    assert [(one.name, one.role) for one in (admin, program)] == [
        ("admin", Role.ADMIN),
        ("prometheus", Role.VIEWER),
    ]
    # Prometheus asks under a name that the service has, with the token's file.
    (job,) = [one for one in PROMETHEUS["scrape_configs"] if one["job_name"] == "control"]
    assert job["authorization"] == {"credentials_file": "/run/secrets/control_token"}
    assert job["static_configs"] == [{"targets": [f"{control.hosts[0]}:{control.listen.rpartition(':')[2]}"]}]


def test_users_of_the_control_service_are_kept_and_a_removed_one_stays_removed(tmp_path: Path) -> None:
    environment.main(tmp_path)
    folder = tmp_path / environment.FOLDER
    file = folder / "control_users"
    token = environment.add_control_user(folder, "ada", "operator")
    kept = [line for line in file.read_text().splitlines() if not line.startswith("admin:")]
    file.write_text("\n".join(kept))
    environment.main(tmp_path)
    assert set(read_users(file)) == {"prometheus", "ada"}
    old = (folder / "control_token").read_text().strip()
    (folder / "control_token").unlink()
    environment.main(tmp_path)
    users = Users(file)
    assert users.with_token(old) is None
    assert users.with_token((folder / "control_token").read_text().strip()) is not None
    ada = users.with_token(token)
    assert ada is not None
    assert (ada.name, ada.role) == ("ada", Role.OPERATOR)
    assert set(read_users(file)) == {"prometheus", "ada"}


def test_a_user_is_added_in_place_and_the_token_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert environment.main(tmp_path, ["--add", "ada", "--role", "admin"]) == 1
    assert "control_users: No such file" in capsys.readouterr().err
    environment.main(tmp_path)
    capsys.readouterr()
    file = tmp_path / environment.FOLDER / "control_users"
    before = file.stat().st_ino
    users = Users(file)
    assert environment.main(tmp_path, ["--add", "ada"]) == 0
    token = capsys.readouterr().out.strip()
    ada = users.with_token(token)
    assert ada is not None
    assert (ada.name, ada.role) == ("ada", Role.VIEWER)
    assert token not in file.read_text()
    # A container would not see another file in its place.
    assert file.stat().st_ino == before
    kept = file.read_text()
    for name, fault in (("ada", "already a user 'ada'"), ("a:b", "the name 'a:b'"), ("", "the name ''")):
        assert environment.main(tmp_path, ["--add", name]) == 2
        assert fault in capsys.readouterr().err
    assert file.read_text() == kept
    assert tuple(role.name.lower() for role in Role) == environment.ROLES


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
