"""Does docker-compose.yml, as it stands, carry the demo; does it outlive kills; and is nothing open that should not be?

The images are stand-ins (see `tests.compose.stand_ins`). It takes minutes and needs Docker: `make test-compose`.
The tests build on each other, in their order.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from broker.compose import environment
from broker.stack.ports import choose_port
from tests.compose import stand_ins
from tests.compose.panels import Panel, ask_influxdb, ask_prometheus, panels

ROOT: Final = Path(__file__).parents[2]
_PROJECT: Final = "lsb-test"
_DEADLINE_S: Final = 180.0
_MARKERS: Final = 30
"""Of transactions, behind the last message of a partition: they count as offsets."""
_OURS: Final = ("connector", "joiner", "db_connector", "simulator")
_PORTS: Final = ("MQTT", "KAFKA", "INFLUXDB", "PROMETHEUS", "GRAFANA")


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = _DEADLINE_S) -> Any:
    """What the condition gives once it is true."""
    until_s = time.monotonic() + deadline_s
    while True:
        with suppress(OSError, KeyError, ValueError):
            if found := condition():
                return found
        assert time.monotonic() < until_s, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(0.5)


class Stack:
    """The project, with ports and passwords of its own."""

    def __init__(self, folder: Path) -> None:
        self.secrets = folder / environment.FOLDER
        assert environment.main(folder) == 0
        self.ports = {name: choose_port(None) for name in _PORTS}
        own = {f"LSB_{name}_PORT": str(port) for name, port in self.ports.items()}
        self._environment = os.environ | stand_ins.names() | own | {"LSB_SECRETS": str(self.secrets)}
        has_v2 = not subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
        self._command = ["docker", "compose"] if has_v2 else ["docker-compose"]

    def try_to(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run Compose, with more in its environment; what became of it."""
        command = [*self._command, "-p", _PROJECT, "--profile", "demo", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=self._environment | more, capture_output=True, text=True, check=False
        )

    def run(self, *arguments: str) -> str:
        """Run Compose; what it prints."""
        done = self.try_to(*arguments)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def inspect(self, service: str) -> dict[str, Any]:
        """The container of a service."""
        (container,) = self.run("ps", "-q", service).split()
        shown = subprocess.run(["docker", "inspect", container], capture_output=True, check=True)
        found: dict[str, Any] = json.loads(shown.stdout)[0]
        return found

    def services(self) -> list[str]:
        """All of the demo."""
        return sorted(self.run("config", "--services").split())

    def is_healthy(self, service: str) -> bool:
        """As Docker sees it; the simulator has no check."""
        state = self.inspect(service)["State"]
        return bool(state["Running"] and state.get("Health", {}).get("Status", "healthy") == "healthy")

    def wait_until_healthy(self) -> None:
        """All of them."""
        names = [name for name in self.services() if name != "spark"]
        wait_until(lambda: all(map(self.is_healthy, names)), "all services are healthy")

    def kill(self, service: str) -> None:
        """As a crash: not by Docker, which would leave it alone."""
        os.kill(self.inspect(service)["State"]["Pid"], signal.SIGKILL)

    def prometheus(self, expression: str) -> float:
        """The value of an expression that has one."""
        (found,) = ask_prometheus(f"http://127.0.0.1:{self.ports['PROMETHEUS']}", expression)
        return float(found["value"][1])

    def verify(self) -> dict[str, Any]:
        """What the tester finds in Kafka and in the database, once nothing is on its way."""
        on_its_way = "sum(lsb_joiner_lag_records) + sum(lsb_db_connector_lag_records)"
        wait_until(lambda: self.prometheus(on_its_way) < _MARKERS, "all is joined and in the database")
        # At home alone it may write.
        tester = "cd ~ && python -m joiner.tester verify --config /etc/lsb/lsb.toml --influx --json report.json >&2"
        told = self.run("exec", "-T", "db_connector", "sh", "-c", f"{tester} && cat report.json")
        found: dict[str, Any] = json.loads(told)["total"]
        return found


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Docker engine: the one that runs, or one for the time of the tests."""
    if not shutil.which("docker") or not (shutil.which("docker-compose") or shutil.which("dockerd")):
        pytest.skip("no Docker here")
    if not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        yield
        return
    if not shutil.which("dockerd") or os.geteuid() != 0:
        pytest.skip("no Docker engine runs here, and none can be started")
    with (tmp_path_factory.mktemp("engine") / "log").open("w") as log:
        running = subprocess.Popen(["dockerd", "--storage-driver=vfs"], stdout=log, stderr=log)
    try:
        until_s = time.monotonic() + 30
        while subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
            if running.poll() is not None or time.monotonic() > until_s:
                pytest.skip("the Docker engine does not start here")
            time.sleep(0.5)
        yield
    finally:
        running.terminate()
        running.wait()


@pytest.fixture(scope="module")
def stack(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if not shutil.which("debootstrap"):
        pytest.skip("stand-in images need debootstrap")
    stand_ins.build()
    made = Stack(tmp_path_factory.mktemp("stack"))
    made.try_to("down", "--volumes", "--timeout", "5")
    try:
        yield made
    finally:
        print(made.try_to("logs", "--no-color", "--tail", "40").stdout)
        made.try_to("down", "--volumes", "--timeout", "5")


def test_the_file_is_valid_and_says_what_is_missing(stack: Stack) -> None:
    stack.run("config", "-q")
    done = stack.try_to("config", "-q", LSB_SECRETS="")
    assert done.returncode != 0
    assert "make env" in done.stderr


def test_it_comes_up_and_the_database_has_points_within_two_minutes(stack: Stack) -> None:
    began_s = time.monotonic()
    stack.run("up", "-d", "--no-build")
    left_s = 120 - (time.monotonic() - began_s)
    wait_until(lambda: stack.prometheus("sum(lsb_db_connector_points_total)") > 1000, "points are there", left_s)
    print(f"from `up` to a thousand points: {time.monotonic() - began_s:.0f} s")
    stack.wait_until_healthy()


def test_no_port_is_open_beyond_the_loopback(stack: Stack) -> None:
    for service in stack.services():
        if service == "spark":
            continue
        for published in stack.inspect(service)["NetworkSettings"]["Ports"].values():
            assert {one["HostIp"] for one in published or ()} <= {"127.0.0.1"}, service


def test_no_secret_is_in_what_docker_shows_of_a_container(stack: Stack) -> None:
    made = [path.read_text().strip() for path in stack.secrets.iterdir()]
    assert len(made) == 5
    for service in stack.services():
        if service != "spark":
            shown = json.dumps(stack.inspect(service))
            assert [secret for secret in made if secret in shown] == [], service


def test_our_services_have_no_rights_and_a_root_that_is_read_only(stack: Stack) -> None:
    for service in _OURS:
        shown = stack.inspect(service)
        assert shown["Config"]["User"] == "10001:10001"
        assert shown["HostConfig"]["ReadonlyRootfs"]
        assert shown["HostConfig"]["CapDrop"] == ["ALL"]
        assert shown["HostConfig"]["SecurityOpt"] == ["no-new-privileges:true"]
        assert shown["HostConfig"]["Memory"] > 0


@pytest.mark.parametrize("panel", panels(), ids=str)
def test_every_query_of_a_panel_has_data(stack: Stack, panel: Panel) -> None:
    prometheus, influxdb = (f"http://127.0.0.1:{stack.ports[name]}" for name in ("PROMETHEUS", "INFLUXDB"))
    for query in panel.queries:
        if panel.source == "prometheus":
            wait_until(lambda query=query: ask_prometheus(prometheus, query), f"data for {query}", 60)  # type: ignore[misc]
        else:
            wait_until(lambda query=query: ask_influxdb(influxdb, query), f"data for {query}", 60)  # type: ignore[misc]


@pytest.mark.parametrize("service", ["joiner", "kafka", "connector", "db_connector", "mqtt"])
def test_a_service_that_is_killed_comes_back(stack: Stack, service: str) -> None:
    before = stack.inspect(service)["RestartCount"]
    pairs = stack.prometheus("sum(lsb_db_connector_points_total)")
    stack.kill(service)
    wait_until(lambda: stack.inspect(service)["RestartCount"] > before, f"{service} is started again")
    stack.wait_until_healthy()
    if service == "db_connector":
        pairs = 0  # it counts from its start
    wait_until(lambda: stack.prometheus("sum(lsb_db_connector_points_total)") > pairs, "points are written on")


def test_an_alert_fires_when_the_database_is_away_and_clears_when_it_is_back(stack: Stack) -> None:
    def firing() -> set[str]:
        url = f"http://127.0.0.1:{stack.ports['PROMETHEUS']}/api/v1/alerts"
        with urllib.request.urlopen(url, timeout=5) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    stack.run("stop", "influxdb")
    wait_until(lambda: "DatabaseAway" in firing(), "the alert fires")
    stack.run("start", "influxdb")
    wait_until(lambda: "DatabaseAway" not in firing(), "the alert clears")


def test_nothing_was_lost_or_doubled_and_it_goes_on_after_down_and_up(stack: Stack) -> None:
    stack.run("stop", "simulator")
    first = stack.verify()
    assert first["expected"] > 10_000
    assert (first["missing"], first["doubled"]) == (0, 0)
    stack.run("down", "--timeout", "20")
    stack.run("up", "-d", "--no-build")
    stack.wait_until_healthy()
    wait_until(lambda: stack.prometheus("sum(lsb_joiner_pairs_total)") > 2000, "it joins on")
    stack.run("stop", "simulator")
    second = stack.verify()
    assert second["expected"] > first["expected"]
    assert (second["missing"], second["doubled"]) == (0, 0)
