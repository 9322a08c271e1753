"""Settings for the tests of db_connector."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the signals of the test process alone: after one, `end_on_signals` would end it within seconds."""
    monkeypatch.setattr("db_connector.__main__.end_on_signals", lambda *_: None)
