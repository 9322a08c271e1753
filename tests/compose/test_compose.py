"""The stack of docker-compose.yml runs the demo, survives kills, and exposes nothing that it should not.

The images are stand-ins (see `tests.compose.stand_ins`). The tests take minutes and need Docker: `make test-compose`.
Each test relies on the tests before it.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Final

import pytest

from tests.compose.panels import Panel, ask_influxdb, ask_prometheus, panels
from tests.compose.stack import Stack, wait_until

_OURS: Final = ("connector", "joiner", "db_connector", "control", "simulator")


def test_the_file_is_valid_and_says_what_is_missing(stack: Stack) -> None:
    stack.run("config", "-q")
    done = stack.try_to("config", "-q", LSB_SECRETS="")
    assert done.returncode != 0
    assert "make env" in done.stderr


def test_it_comes_up_and_the_database_has_points_within_two_minutes(stack: Stack) -> None:
    began_s = time.monotonic()
    stack.run("up", "-d", "--no-build")
    left_s = 120 - (time.monotonic() - began_s)
    wait_until(lambda: stack.prometheus("sum(lsb_db_connector_points_total)") > 1000, "points are written", left_s)
    print(f"from `up` to a thousand points: {time.monotonic() - began_s:.0f} s")
    stack.wait_until_healthy()


def test_no_port_is_open_beyond_the_loopback(stack: Stack) -> None:
    for service in stack.services():
        for published in stack.inspect(service)["NetworkSettings"]["Ports"].values():
            assert {one["HostIp"] for one in published or ()} <= {"127.0.0.1"}, service


def test_no_secret_is_in_what_docker_shows_of_a_container(stack: Stack) -> None:
    made = [path.read_text().strip() for path in stack.secrets.iterdir()]
    assert len(made) == 8
    for service in stack.services():
        shown = json.dumps(stack.inspect(service))
        assert [secret for secret in made if secret in shown] == [], service


def test_every_container_has_no_rights_and_a_root_that_is_read_only(stack: Stack) -> None:
    for service in stack.services():
        shown = stack.inspect(service)
        assert shown["Config"]["User"] not in {"", "root", "0"}, service
        assert shown["HostConfig"]["ReadonlyRootfs"], service
        assert shown["HostConfig"]["CapDrop"] == ["ALL"], service
        assert shown["HostConfig"]["SecurityOpt"] == ["no-new-privileges:true"], service
        assert shown["HostConfig"]["Memory"] > 0, service
    assert {stack.inspect(service)["Config"]["User"] for service in _OURS} == {"10001:10001"}


def test_the_control_service_shows_the_application_to_its_users_alone(stack: Stack) -> None:
    address = f"{stack.url('CONTROL')}/api/v1"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}/applications", timeout=5)
    assert refused.value.code == 401
    login = {"name": "admin", "password": (stack.secrets / "control_password").read_text().strip()}
    asked = urllib.request.Request(f"{address}/session", json.dumps(login).encode())
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked, timeout=5) as answer:
        assert json.load(answer) == {"name": "admin", "role": "admin"}
        cookie = answer.headers["Set-Cookie"].partition(";")[0]

    def running() -> int:
        asking = urllib.request.Request(f"{address}/applications", headers={"Cookie": cookie})
        with urllib.request.urlopen(asking, timeout=5) as shown:
            (application,) = json.load(shown)
        return int(application["running"])

    wait_until(lambda: running() == 5, "all units are shown as running")
    wait_until(lambda: stack.prometheus("lsb_control_units_running") == 5, "Prometheus may read the same")


# The containers run no replicas.
@pytest.mark.parametrize("panel", [one for one in panels() if one.dashboard != "replicas"], ids=str)
def test_every_query_of_a_panel_has_data(stack: Stack, panel: Panel) -> None:
    prometheus, influxdb = stack.url("PROMETHEUS"), stack.url("INFLUXDB")
    for query in panel.queries:
        if panel.source == "prometheus":
            wait_until(lambda query=query: ask_prometheus(prometheus, query), f"data for {query}", 60)  # type: ignore[misc]
        else:
            wait_until(lambda query=query: ask_influxdb(influxdb, query), f"data for {query}", 60)  # type: ignore[misc]


@pytest.mark.parametrize("service", ["joiner", "kafka", "connector", "db_connector", "control", "mqtt"])
def test_a_service_that_is_killed_comes_back(stack: Stack, service: str) -> None:
    before = stack.inspect(service)["RestartCount"]
    pairs = stack.prometheus("sum(lsb_db_connector_points_total)")
    stack.kill(service)
    wait_until(lambda: stack.inspect(service)["RestartCount"] > before, f"{service} is restarted")
    stack.wait_until_healthy()
    if service == "db_connector":
        pairs = 0  # its counter restarts at 0
    wait_until(lambda: stack.prometheus("sum(lsb_db_connector_points_total)") > pairs, "points are written again")


def test_nothing_was_lost_or_duplicated_and_it_continues_after_down_and_up(stack: Stack) -> None:
    stack.run("stop", "simulator")
    first = stack.verify()
    assert first["expected"] > 10_000
    assert (first["missing"], first["doubled"]) == (0, 0)
    stack.run("down", "--timeout", "20")
    stack.run("up", "-d", "--no-build")
    stack.wait_until_healthy()
    wait_until(lambda: stack.prometheus("sum(lsb_joiner_pairs_total)") > 2000, "it continues to join")
    stack.run("stop", "simulator")
    second = stack.verify()
    assert second["expected"] > first["expected"]
    assert (second["missing"], second["doubled"]) == (0, 0)
