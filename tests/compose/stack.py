"""The project of docker-compose.yml, started for tests with stand-in images, other ports and other passwords."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from broker.compose import environment
from broker.stack.ports import choose_port
from tests.compose import stand_ins
from tests.compose.panels import ask_prometheus

ROOT: Final = Path(__file__).parents[2]
_PROJECT: Final = "lsb-test"
_DEADLINE_S: Final = 180.0
_MARKERS: Final = 30
"""How many transaction markers may follow the last messages. Each takes up an offset and therefore counts as lag."""
_PROFILES: Final = {"simulator": "demo", "spark": "spark"}
"""The profiles of the services that are not always started."""
_PORTS: Final = ("MQTT", "KAFKA", "INFLUXDB", "PROMETHEUS", "GRAFANA", "CONTROL")


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = _DEADLINE_S) -> Any:
    """Wait until the condition returns a true value, and return that value."""
    until_s = time.monotonic() + deadline_s
    while True:
        with suppress(OSError, KeyError, ValueError):
            if found := condition():
                return found
        assert time.monotonic() < until_s, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(0.5)


class Stack:
    """The Compose project, with ports and passwords of its own."""

    def __init__(
        self, folder: Path, profiles: Sequence[str] = ("demo",), altering: Sequence[Path] = (), **variables: str
    ) -> None:
        """``altering``: Compose files that override docker-compose.yml. ``variables``: their environment variables."""
        self._profiles = profiles
        self.secrets = folder / environment.FOLDER
        assert environment.main(folder) == 0
        self.ports = {name: choose_port(None) for name in _PORTS}
        own = {f"LSB_{name}_PORT": str(port) for name, port in self.ports.items()}
        self._environment = os.environ | stand_ins.names() | own | {"LSB_SECRETS": str(self.secrets)} | variables
        self._command = stand_ins.compose()
        for path in (ROOT / "docker-compose.yml", *altering):
            self._command += ["-f", str(path)]
        self._command += ["-p", _PROJECT]
        for profile in profiles:
            self._command += ["--profile", profile]

    def try_to(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run Compose with additional variables, and return the completed process."""
        command = [*self._command, *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=self._environment | more, capture_output=True, text=True, check=False
        )

    @contextmanager
    def lent(self) -> Iterator[Self]:
        """Remove the leftovers of an earlier run and yield the stack. At the end, print its logs and remove it."""
        self.try_to("down", "--volumes", "--remove-orphans", "--timeout", "5")
        try:
            yield self
        finally:
            print(self.try_to("logs", "--no-color", "--tail", "40").stdout)
            self.try_to("down", "--volumes", "--remove-orphans", "--timeout", "5")

    def run(self, *arguments: str) -> str:
        """Run Compose and return its output."""
        done = self.try_to(*arguments)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def inspect(self, service: str) -> dict[str, Any]:
        """Return Docker's description of a service's container."""
        (container,) = self.run("ps", "-q", service).split()
        shown = subprocess.run(["docker", "inspect", container], capture_output=True, check=True)
        found: dict[str, Any] = json.loads(shown.stdout)[0]
        return found

    def services(self) -> list[str]:
        """Return the services of all active profiles."""
        named = self.run("config", "--services").split()
        return sorted(service for service in named if _PROFILES.get(service) in (None, *self._profiles))

    def is_healthy(self, service: str) -> bool:
        """Return whether Docker reports the service as healthy, or as running if it has no health check."""
        state = self.inspect(service)["State"]
        return bool(state["Running"] and state.get("Health", {}).get("Status", "healthy") == "healthy")

    def wait_until_healthy(self, *services: str) -> None:
        """Wait until these services, or all, are healthy."""
        names = services or self.services()
        wait_until(lambda: all(map(self.is_healthy, names)), f"{', '.join(names)} are healthy")

    def kill(self, service: str) -> None:
        """Kill the process directly, because Docker does not restart a container that was killed through Docker."""
        os.kill(self.inspect(service)["State"]["Pid"], signal.SIGKILL)

    def url(self, server: str) -> str:
        """Return the address of Prometheus, Grafana, InfluxDB or the control service."""
        return f"http://127.0.0.1:{self.ports[server]}"

    def prometheus(self, expression: str) -> float:
        """Return the value of an expression. Raise ValueError unless it has exactly one."""
        (found,) = ask_prometheus(self.url("PROMETHEUS"), expression)
        return float(found["value"][1])

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of the firing alerts."""
        with urllib.request.urlopen(f"{self.url('PROMETHEUS')}/api/v1/alerts", timeout=5) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        return [one["labels"] for one in alerts if one["state"] == "firing"]

    def simulate(self, events: Path, *arguments: str) -> None:
        """Send an events file with the simulator on this machine, and wait until the broker has received all of it."""
        login = ["--username", environment.USER, "--password-file", str(self.secrets / "mqtt_password")]
        place = ["--host", "127.0.0.1", "--port", str(self.ports["MQTT"]), "--events", str(events)]
        command = [sys.executable, str(ROOT / "simulator/simulator.py"), *place, *login, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def verify(self) -> dict[str, Any]:
        """Wait until nothing is in flight. Return the tester's total, including the database."""
        on_its_way = "sum(lsb_joiner_lag_records) + sum(lsb_db_connector_lag_records)"
        wait_until(lambda: self.prometheus(on_its_way) < _MARKERS, "all records are joined and in the database")
        # Only the home folder is writable.
        tester = "cd ~ && python -m joiner.tester verify --config /etc/lsb/lsb.toml --influx --json report.json >&2"
        report = self.run("exec", "-T", "db_connector", "sh", "-c", f"{tester} && cat report.json")
        found: dict[str, Any] = json.loads(report)["total"]
        return found
