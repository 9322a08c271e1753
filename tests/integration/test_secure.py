"""The whole pipeline over TLS, with authentication at every server. Wrong credentials are reported at startup."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from joiner.check import command
from simulator.generate import main as generate
from tests.integration.secure_servers import USER, Secure, secure_servers
from tests.integration.services import DEADLINE_S, ROOT, kill, start_service, stop, wait_until

_EVENTS = 400


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with secure_servers(tmp_path_factory.mktemp("secure")) as started:
        yield started


def test_the_pipeline_runs_over_tls_with_a_login_at_each_server(servers: Secure, tmp_path: Path) -> None:
    settings, events = str(servers.settings()), str(tmp_path / "events.json")
    generate(["--out", events, "--events", str(_EVENTS), "--disorder", "0"])
    logs = {name: tmp_path / f"{name}.log" for name in ("connector", "joiner", "db_connector")}
    commands = {"connector": (), "joiner": ("run",), "db_connector": ()}
    running = [
        start_service(name, *given, "--config", settings, environment={}, log=logs[name])
        for name, given in commands.items()
    ]
    try:
        wait_until(lambda: "connected to MQTT" in logs["connector"].read_text(), "the connector is connected")
        done = simulate(servers, events)
        assert done.returncode == 0, done.stderr

        def is_right() -> bool:
            return command.main(["verify", "--config", settings, "--events", events, "--influx"]) == 0

        wait_until(is_right, "the tester finds every pair in Kafka and in the database")
    finally:
        ended = [stop(process) for process in running]
    assert ended == [0, 0, 0]


def simulate(servers: Secure, events: str) -> subprocess.CompletedProcess[str]:
    """Run the simulator, which replays the events file over TLS."""
    program = [sys.executable, "simulator/simulator.py", "--host", "localhost", "--port", str(servers.mqtt_port)]
    login = ["--username", USER, "--password-file", str(servers.folder / "mqtt"), "--ca-file", str(servers.authority)]
    given = ["--events", events, "--rate", "max"]
    return subprocess.run([*program, *login, *given], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("service", "wrong", "message"),
    [
        (("connector",), {"mqtt": "wrong"}, "(mqtt.username, mqtt.password)"),
        (("connector",), {"kafka": "wrong"}, "authentication"),
        (("joiner", "run"), {"kafka": "wrong"}, "authentication"),
        (("db_connector",), {"kafka": "wrong"}, "authentication"),
    ],
)
def test_a_wrong_login_ends_a_service_at_its_start_with_a_clear_error(
    servers: Secure, tmp_path: Path, service: tuple[str, ...], wrong: dict[str, str], message: str
) -> None:
    log = tmp_path / "log"
    running = start_service(*service, "--config", str(servers.settings(**wrong)), environment={}, log=log)
    try:
        assert running.wait(DEADLINE_S) == 1
    finally:
        kill(running)
    assert message in log.read_text().lower()
    assert "Traceback" not in log.read_text()


def test_a_wrong_token_is_reported_and_the_results_wait(servers: Secure, tmp_path: Path) -> None:
    log = tmp_path / "log"
    wrong = str(servers.settings(token=f"{USER}:wrong"))
    running = start_service("db_connector", "--config", wrong, environment={}, log=log)
    message = "check influxdb.token (or token_file) in the settings"
    wait_until(lambda: message in log.read_text(), "the refusal by the database is logged")
    assert stop(running) == 0
    assert "Traceback" not in log.read_text()


def test_a_simulator_with_a_wrong_password_says_so(servers: Secure, tmp_path: Path) -> None:
    servers.settings(mqtt="wrong")
    events = tmp_path / "events.json"
    generate(["--out", str(events), "--events", "10"])
    done = simulate(servers, str(events))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Not authorized" in done.stderr
    assert "MQTT_PASSWORD" in done.stderr
