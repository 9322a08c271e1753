"""Records wait apart only where a step carries thousands of them; here a few steps of two in three make them wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from joiner.core import engine


@pytest.fixture(autouse=True, scope="package")
def _records_wait_apart() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "is_backlog", lambda kept, touched: (kept + touched) % 3 > 0)
        yield
