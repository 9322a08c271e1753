"""Are lines that are not events reported when a replay starts, and in its exit status?"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simulator import replay
from simulator.recording import shown
from simulator.settings import NO_EVENTS

ISO = "2019-04-01T07:27:40.{:03}+02:00"


class Publisher:
    """A publisher that accepts all messages, and acknowledges them at once."""

    sent: list[bytes]
    refused = 0

    def __init__(self, link: Any, _say: Any) -> None:
        self.room, self.window, self.connected, self.unacknowledged = 1000, link.in_flight_max, True, 0
        type(self).sent = []

    @property
    def tally(self) -> Any:
        count = len(self.sent)
        return SimpleNamespace(sent=count, acknowledged=count, refused=self.refused, reconnections=0, resent=0)

    def connect(self, _timeout_s: float, _is_over: Any) -> None: ...

    def send(self, payload: bytes) -> None:
        self.sent.append(payload)

    def turn(self, _wait_s: float) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(replay, "Publisher", Publisher)
    return tmp_path / "events.json"


def run(events: Path, *lines: bytes, **environment: str) -> int:
    events.write_bytes(b"".join(line + b"\n" for line in lines))
    return replay.main(["--events", str(events), "--rate", "max"], environment)


def line(timestamp: object) -> bytes:
    return json.dumps({"Thing": "R1", "Timestamp": timestamp, "id": "a", "speed": 1}).encode()


def test_events_with_times_as_text_are_events_and_go_in_the_order_of_time(
    events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line(ISO.format(at)) for at in (300, 100, 200)]
    assert run(events, *lines) == 0
    assert Publisher.sent == [lines[1], lines[2], lines[0]]
    assert "not events" not in capsys.readouterr().err


def test_lines_that_are_not_events_are_an_exit_status_and_the_first_is_reported_with_its_reason(
    events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line(1), line("2019-04-01T05:27:40"), b"\x1b[31m" + b"x" * 1000]
    assert run(events, *lines, TIME_UNIT="s") == NO_EVENTS
    assert Publisher.sent == lines
    told = capsys.readouterr().err
    assert "2 of 3 lines are not events; they are sent unchanged, and the exit status will be 3" in told
    assert "The first is line 2: time '2019-04-01T05:27:40' has no offset from UTC; add Z" in told


def test_unacknowledged_messages_determine_the_exit_status_before_lines_that_are_not_events(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Publisher, "refused", 1)
    assert run(events, b"no event") == 1


def test_the_reason_is_shown_in_one_short_line_whatever_it_quotes() -> None:
    assert shown("plain") == "plain"
    assert "\n" not in shown("a\nb\x1b[0m")
    assert len(shown("x" * 10**6)) < 300
