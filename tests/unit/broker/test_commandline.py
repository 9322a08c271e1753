"""What a command leaves to the garbage collector once its modules are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from broker.commandline import imports_of


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_the_collector_rests_during_imports_and_ignores_what_they_made() -> None:
    with imports_of("command"):
        assert not gc.isenabled()
        made = [object()]
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert not any(one is made for one in gc.get_objects())


def test_a_collector_that_is_switched_off_stays_so() -> None:
    gc.disable()
    with imports_of("command"):
        pass
    assert not gc.isenabled()


@pytest.mark.parametrize(
    ("error", "ends"), [(ModuleNotFoundError("gone", name="msgspec"), SystemExit), (ValueError("bad"), ValueError)]
)
def test_it_works_again_after_an_import_has_failed(error: Exception, ends: type[BaseException]) -> None:
    with pytest.raises(ends), imports_of("command"):
        raise error
    assert gc.isenabled()
