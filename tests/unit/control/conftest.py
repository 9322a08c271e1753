"""Fixtures of the tests of the control service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.control.audited import Office


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """Several desks for one application, whose actions all end with the test."""
    made = Office(monkeypatch)
    yield made
    made.let_end.set()
