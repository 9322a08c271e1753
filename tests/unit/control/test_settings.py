"""Is a service refused that would be open to a network, and does the command say what is wrong?"""

from __future__ import annotations

import io
import socket
from pathlib import Path
from typing import Any

import pytest

from broker.settings import SettingsError
from control.__main__ import main
from control.settings import ControlSettings, Settings, check_access, check_applications

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


def _join() -> dict[str, Any]:
    return {"join": [{"name": "p", "left": "a", "right": "b", "function": "product", "output": "c"}]}


def test_users_are_added_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "lsb.toml"
    users = tmp_path / "users"
    config.write_text(f'{TOML}[control]\nusers_file = "{users}"\n')
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    assert main(["add", "ada", "--role", "admin", "--config", str(config)]) == 0
    assert main(["add", "grafana", "--role", "viewer", "--token", "--config", str(config)]) == 0
    token = capsys.readouterr().out.strip()
    assert len(token) >= 40
    assert [line.rpartition(":")[0] for line in users.read_text().splitlines()] == ["ada:admin", "grafana:viewer"]
    assert main(["add", "ada", "--role", "admin", "--token", "--config", str(config)]) == 2
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
        assert main(["run"]) == 2
    assert fault.replace("{taken}", taken) in capsys.readouterr().err


def test_without_a_users_file_nobody_can_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lsb.toml").write_text(TOML)
    assert main(["add", "ada", "--role", "admin", "--token"]) == 2
    assert "control.users_file is missing" in capsys.readouterr().err
