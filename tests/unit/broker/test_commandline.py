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


def run_service(module: str, *command: str, settings: str, tmp_path: Path, closed: str = "") -> tuple[int, str, str]:
    """Run a service whose exit handlers would print. Return its exit status, and what it printed."""
    file = tmp_path / "lsb.toml"
    file.write_text(settings)
    start = f"import atexit, runpy; atexit.register(print, 'ran'); runpy.run_module('{module}', run_name='__main__')"
    given = [sys.executable, "-c", start, *command, "--config", str(file)]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *given]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


JOIN = '[[join]]\nname = "j"\nleft = "a"\nright = "b"\noutput = "c"\nfunction = "product"\n'
REJECTED = f'{JOIN}[kafka.client]\n"no.such.setting" = "1"\n'
"""Settings that the Kafka client rejects."""


@pytest.mark.parametrize(
    ("module", "command", "settings", "reason"),
    [
        ("connector", (), REJECTED, "no.such.setting"),
        ("joiner", ("run",), REJECTED, "no.such.setting"),
        ("db_connector", (), REJECTED, "no.such.setting"),
        ("control", ("run",), f"{JOIN}[control]\nno_such = 1\n", "control.no_such"),
    ],
)
def test_a_service_exits_without_the_exit_handlers_of_libraries(
    tmp_path: Path, module: str, command: tuple[str, ...], settings: str, reason: str
) -> None:
    # Those of OpenSSL free what a Kafka client in another thread may still use.
    status, out, errors = run_service(module, *command, settings=settings, tmp_path=tmp_path)
    assert status in {1, 2}
    assert reason in errors
    assert "Traceback" not in errors
    assert out == ""


def test_a_service_without_standard_output_returns_its_status(tmp_path: Path) -> None:
    status, _, errors = run_service("connector", settings=REJECTED, tmp_path=tmp_path, closed=">&-")
    assert status == 1
    assert "Traceback" not in errors
