"""The format of log lines, as text and as JSON."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from demo.services import ServiceFailed, Services

_PROGRAM = """
import logging
from broker.logs import set_up_logs
set_up_logs("info")
log = logging.getLogger("joiner.runtime.runners.process")
log.debug("not logged")
log.info("unit %s: claimed\\nby two", 3)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("a fault")
"""


def lines_of(how: str | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a program logs when its standard error is not a terminal."""
    monkeypatch.delenv("LSB_LOG") if how is None else monkeypatch.setenv("LSB_LOG", how)
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


@pytest.mark.parametrize("how", [None, "json"])
def test_without_a_terminal_each_event_is_one_json_object(how: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = map(json.loads, lines_of(how, monkeypatch))
    assert (first["event"], first["level"], first["logger"]) == (
        "unit 3: claimed\nby two",
        "info",
        "joiner.runtime.runners.process",
    )
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == ("a fault", "error")
    assert "ZeroDivisionError" in second["exception"]


def test_a_person_gets_a_line_of_text_for_each_event_and_tracebacks_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, *rest = lines_of("text", monkeypatch)
    # Whoever names an instance cannot forge a line.
    assert first.endswith("INFO joiner.runtime.runners.process: unit 3: claimed\\nby two")
    assert second.endswith("ERROR joiner.runtime.runners.process: a fault")
    assert rest[0].startswith("Traceback")
    assert rest[-1].startswith("ZeroDivisionError")


def test_on_a_terminal_logs_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LSB_LOG")
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", _PROGRAM], stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert shown.splitlines()[0].endswith("INFO joiner.runtime.runners.process: unit 3: claimed\\nby two")


def test_what_a_demo_shows_of_a_service_that_ended_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LSB_LOG")
    (tmp_path / "brief.py").write_text(_PROGRAM)
    services = Services(tmp_path / "demo", {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"})
    services.start("brief", "brief")
    with pytest.raises(ServiceFailed, match="ended before it was ready") as failed:
        services.wait_for("brief", "words that it never says")
    assert "INFO joiner.runtime.runners.process: unit 3: claimed" in str(failed.value)
