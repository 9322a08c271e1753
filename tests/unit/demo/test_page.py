"""Does the demo say where its page is, and keep running until it is stopped or a service fails?"""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Any

import pytest

from demo import page
from demo.services import ServiceFailed


class Running:
    """Stands in for the services. ``outcomes``: what the checks raise, one after the other."""

    def __init__(self, log: str = "", *outcomes: BaseException | None) -> None:
        self.log = log
        self.started: list[tuple[str, ...]] = []
        self._outcomes = list(outcomes)

    def start(self, *arguments: str, **environment: str) -> None:
        self.started.append((*arguments, *environment.values()))

    def wait_for(self, _name: str, words: str) -> None:
        assert words in self.log

    def logged(self, _name: str) -> str:
        return self.log

    def check(self) -> None:
        outcome = self._outcomes.pop(0)
        if outcome is not None:
            raise outcome


def test_the_address_and_the_password_are_printed_and_the_page_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lsb.token"
    file.write_text("a-token\n")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    ready = "INFO control.server: listening on http://127.0.0.1:8090\n"
    token = f"INFO control.server: no control.users_file: log in as admin with the token in {file}, valid until exit\n"
    services: Any = Running(token + ready)
    monkeypatch.setenv("DISPLAY", ":0")
    page.open_page(services)
    assert services.started == [("control", "control", "run", "127.0.0.1:0")]
    assert "http://127.0.0.1:8090  name: admin  password: a-token" in capsys.readouterr().out
    assert opened == ["http://127.0.0.1:8090"]
    # A browser in text mode would take over the terminal.
    monkeypatch.delenv("DISPLAY")
    users: Any = Running(ready)
    page.open_page(users)
    assert "log in as a user of control.users_file" in capsys.readouterr().out
    assert len(opened) == 1


def test_a_log_without_an_address_is_an_error() -> None:
    services: Any = Running("listening on ")
    with pytest.raises(ServiceFailed, match="did not report its address"):
        page.open_page(services)


def test_everything_runs_until_ctrl_c_or_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_CHECK_S", 0.0)
    stopped: Any = Running("", None, None, KeyboardInterrupt())
    page.keep_open(stopped)
    failed: Any = Running("", None, ServiceFailed("joiner ended unexpectedly"))
    with pytest.raises(ServiceFailed, match="joiner ended"):
        page.keep_open(failed)
