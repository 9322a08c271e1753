"""Makes the engine use the backlog in two of three steps. By default, only steps with thousands of records use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from joiner.core import engine


@pytest.fixture(autouse=True, scope="package")
def _small_backlogs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "is_backlog", lambda kept, touched: (kept + touched) % 3 > 0)
        yield
