"""What a command leaves to the garbage collector once its modules are imported, and how a service exits."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.parametrize(("module", "command"), [("connector", ()), ("joiner", ("run",)), ("db_connector", ())])
def test_a_service_exits_without_the_exit_handlers_of_libraries(
    tmp_path: Path, module: str, command: tuple[str, ...]
) -> None:
    # Those of OpenSSL free what a Kafka client in another thread may still use.
    settings = tmp_path / "lsb.toml"
    join = '[[join]]\nname = "j"\nleft = "a"\nright = "b"\noutput = "c"\nfunction = "product"\n'
    settings.write_text(f'{join}[kafka.client]\n"no.such.setting" = "1"\n')
    start = f"import atexit, runpy; atexit.register(print, 'ran'); runpy.run_module('{module}', run_name='__main__')"
    given = [sys.executable, "-c", start, *command, "--config", str(settings)]
    done = subprocess.run(given, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in {1, 2}
    assert "no.such.setting" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
