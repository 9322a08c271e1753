"""Is Kafka read only while a page is visible, at intervals, and never twice at a time?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from control.page.lookup import visible
from control.page.lookup.visible import WhileVisible


class Page:
    """A page that reads something. ``begun``: how often it began to read. ``is_done``: whether it has read that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.is_done, self.now_s = 0, True, 100.0
        monkeypatch.setattr(visible, "background_tasks", SimpleNamespace(create=self._create))
        monkeypatch.setattr(visible, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(visible, "ui", SimpleNamespace(on=self._on, run_javascript=lambda _script: None))
        self.reading = WhileVisible("read something", self._read)
        self.reading.build()

    async def _read(self) -> None:
        self.begun += 1

    def _create(self, work: Any, name: str) -> Any:
        assert name == "read something"
        with pytest.raises(StopIteration):
            work.send(None)
        return SimpleNamespace(done=lambda: self.is_done)

    def _on(self, _event: str, handle: Any) -> None:
        self._handle = handle

    def show(self, *, is_shown: bool) -> None:
        """Report that the page is in the foreground now, or no longer."""
        self._handle(SimpleNamespace(args=is_shown))

    def later(self, after_s: float = 1.0) -> int:
        """Return how often it has begun to read after some more seconds."""
        self.now_s += after_s
        self.reading.refresh()
        return self.begun


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(monkeypatch)


def test_it_is_read_at_once_and_then_every_few_seconds(page: Page) -> None:
    assert [page.later() for _ in range(7)] == [1, 1, 1, 2, 2, 2, 3]


def test_it_is_not_read_again_before_it_has_been_read(page: Page) -> None:
    assert page.later() == 1
    page.is_done = False
    assert page.later(60.0) == 1
    page.is_done = True
    assert page.later() == 2


def test_what_a_user_chooses_is_read_without_delay(page: Page) -> None:
    assert page.later() == 1
    page.reading.hurry()
    assert page.later(0.1) == 2


def test_a_page_in_the_background_reads_nothing_until_it_is_seen_again(page: Page) -> None:
    assert page.later() == 1
    page.show(is_shown=False)
    assert page.later(3_600.0) == 1
    page.show(is_shown=True)
    assert page.later(0.1) == 2
