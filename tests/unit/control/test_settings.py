"""Is a service refused that would be open to a network, and does the command say what is wrong?"""

from __future__ import annotations

import io
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.settings import SettingsError, load_settings
from control.__main__ import run
from control.facts.flow.endpoints import Endpoints, Sink, Source, target_of
from control.settings import ControlSettings, Settings, check_access, check_applications
from db_connector.__main__ import make_sink
from db_connector.kafka.target import target_of as db_connector_target
from db_connector.settings import DbConnectorSettings

TOML = '[[join]]\nname = "p"\nleft = "a"\nright = "b"\nfunction = "product"\noutput = "c"\n'
OPEN: dict[str, Any] = {"listen": "0.0.0.0:8090"}


@pytest.mark.parametrize("listen", ["8090", "127.0.0.1:0", "localhost:80", "[::1]:8090", "127.8.8.8:1"])
def test_on_the_loopback_nothing_else_is_needed(listen: str) -> None:
    check_access(ControlSettings(listen=listen))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (OPEN, "users_file is missing"),
        (OPEN, "sent in clear"),
        (OPEN, "control.hosts is empty"),
        (OPEN | {"users_file": "u", "hosts": ["h"]}, "sent in clear"),
        (OPEN | {"users_file": "u", "proxies": ["10.0.0.1"]}, "control.hosts is empty"),
        ({"listen": "[::]:1", "hosts": ["h"], "proxies": ["10.0.0.0/8"]}, "users_file is missing"),
        ({"listen": "join.example:1", "hosts": ["h"], "proxies": ["::1"]}, "users_file is missing"),
        ({"proxies": ["127.0.0.1"]}, "control.hosts is empty"),
        ({"tls_key_file": "k"}, "control.tls_certificate_file is not"),
        (OPEN | {"published_on_loopback": True}, "users_file is missing"),
        (OPEN | {"published_on_loopback": True, "users_file": "u", "proxies": ["::1"]}, "control.hosts is empty"),
    ],
)
def test_a_service_that_is_open_to_a_network_needs_users_tls_and_its_names(given: Any, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        check_access(ControlSettings.model_validate(given))


def test_with_all_of_these_it_may_be_open_to_a_network() -> None:
    given = OPEN | {"users_file": "u", "hosts": ["h"]}
    check_access(ControlSettings.model_validate(given | {"proxies": ["10.1.2.3/8"]}))
    check_access(ControlSettings.model_validate(given | {"tls_certificate_file": Path("c")}))


def test_in_a_container_that_only_its_host_can_reach_it_needs_no_tls_but_users() -> None:
    check_access(ControlSettings.model_validate(OPEN | {"users_file": "u", "published_on_loopback": True}))


def test_two_applications_need_two_names() -> None:
    one = Settings.model_validate({"join": [], "application": {"name": "a"}} | _join())
    with pytest.raises(SettingsError, match="application a"):
        check_applications([one, one])


def loaded(tmp_path: Path, more: str = "") -> Settings:
    config = tmp_path / "lsb.toml"
    config.write_text(f"{TOML}{more}")
    return load_settings(Settings, config)


def test_only_connectors_that_the_file_or_the_environment_names_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loaded(tmp_path).endpoints() == Endpoints()
    assert loaded(tmp_path, "[mqtt]\n").endpoints() == Endpoints(
        Source("127.0.0.1:1883", "machine/states", "lsb-connector")
    )
    assert loaded(tmp_path, "[connector]\nclient_id = 'c'\n").endpoints().sink is None
    sink = Sink("db_connector", "http://127.0.0.1:8086", "-/lsb/autogen", "joined")
    assert loaded(tmp_path, "[influxdb]\n").endpoints() == Endpoints(None, sink)
    assert loaded(tmp_path, "[db_connector]\n").endpoints() == Endpoints(None, sink)
    merged = msgspec.structs.replace(sink, is_merged=True)
    assert loaded(tmp_path, "[db_connector]\nmerged = true\n").endpoints() == Endpoints(None, merged)
    assert (sink.results_topic("out"), merged.results_topic("out")) == ("out", "out.merged")
    assert [Endpoints(None, one).has_merged for one in (None, sink, merged)] == [False, False, True]
    monkeypatch.setenv("LSB_MQTT__HOST", "::1")
    monkeypatch.setenv("LSB_DB_CONNECTOR__GROUP", "other")
    found = loaded(tmp_path).endpoints()
    assert (found.source, found.sink) == (
        Source("[::1]:1883", "machine/states", "lsb-connector"),
        Sink("other", "http://127.0.0.1:8086", "-/lsb/autogen", "joined"),
    )


def test_of_the_connectors_no_secret_is_shown_and_no_file_with_one_is_read(tmp_path: Path) -> None:
    more = (
        "[mqtt]\nusername = 'mqtt-user'\npassword = 's3cret'\npassword_file = 'none'\n"
        "[influxdb]\nurl = 'https://db.example:8086/s3cret'\ntoken = 's3cret'\ntoken_file = 'none'\n"
        "tls_ca_file = 'none'\n"
    )
    shown = repr(loaded(tmp_path, more).endpoints())
    assert "https://db.example:8086" in shown
    assert "s3cret" not in shown
    assert "mqtt-user" not in shown


@pytest.mark.parametrize(
    "given",
    [
        {"influxdb": {}},
        {"influxdb": {"org": "plant", "bucket": "b"}, "db_connector": {"measurement": "m"}},
        {"postgresql": {"database": "lsb_1", "table": "a.b"}, "db_connector": {"sink": "postgresql"}},
        {"delta": {"path": "s3://plant/joined"}, "db_connector": {"sink": "delta"}},
        {"db_connector": {"sink": "stdout"}},
    ],
)
def test_the_database_is_named_as_in_the_offsets_that_its_connector_commits(given: dict[str, Any]) -> None:
    sink = Settings.model_validate(_join() | given).endpoints().sink
    assert sink is not None
    committed = db_connector_target(make_sink(DbConnectorSettings.model_validate(given)))
    assert committed.startswith(target_of(sink))


def test_a_fault_in_the_section_of_a_connector_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"mqtt\.port"):
        loaded(tmp_path, "[mqtt]\nport = 0\n")


def _join() -> dict[str, Any]:
    return {"join": [{"name": "p", "left": "a", "right": "b", "function": "product", "output": "c"}]}


def test_users_are_added_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "lsb.toml"
    users = tmp_path / "users"
    config.write_text(f'{TOML}[control]\nusers_file = "{users}"\n')
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    assert run(["add", "ada", "--role", "admin", "--config", str(config)]) == 0
    assert run(["add", "grafana", "--role", "viewer", "--token", "--config", str(config)]) == 0
    token = capsys.readouterr().out.strip()
    assert len(token) >= 40
    assert [line.rpartition(":")[0] for line in users.read_text().splitlines()] == ["ada:admin", "grafana:viewer"]
    assert run(["add", "ada", "--role", "admin", "--token", "--config", str(config)]) == 2
    assert "already has a user 'ada'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("[control]\nusers_file = 'none'\nlisten = 0", "the users file none cannot be read"),
        ("[control]\nproxies = ['proxy']", "must be an IP address or a network"),
        ("[control]\nlisten = '127.0.0.1:{taken}'", "cannot listen on 127.0.0.1:{taken}: Address already in use"),
        ("[control]\nlisten = '0.0.0.0:1'", "control.users_file is missing"),
        ("[control]\nlisten = 'x'", "must be a port or host:port"),
        ("[control]\nhosts = ['a b']", "must be a host name or an address, without a port"),
        ("[control]\nhosts = ['join.example:8443']", "must be a host name or an address, without a port"),
        ("[control]\nsession_life = '1s'", "from 1min to 7d"),
        ("[control]\ntls_certificate_file = 'none'\nlisten = 0", "control.tls_certificate_file: the file none"),
    ],
)
def test_settings_that_cannot_be_used_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: str, fault: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        Path("lsb.toml").write_text(f"{TOML}{more}\n".replace("{taken}", taken))
        assert run(["run"]) == 2
    assert fault.replace("{taken}", taken) in capsys.readouterr().err


def test_without_a_users_file_nobody_can_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lsb.toml").write_text(TOML)
    assert run(["add", "ada", "--role", "admin", "--token"]) == 2
    assert "control.users_file is missing" in capsys.readouterr().err
