"""Moves records to the backlog in two of three steps; by default, it takes thousands of them in one step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from joiner.core import engine


@pytest.fixture(autouse=True, scope="package")
def _small_backlogs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "is_backlog", lambda kept, touched: (kept + touched) % 3 > 0)
        yield
