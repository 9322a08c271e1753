"""Compiled loops work wherever the package is installed, and are recompiled when a source file changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from joiner.core import compiled

ROOT: Final = Path(__file__).parents[3]

_JOIN: Final = """
import numpy as np, joiner
record = [np.array([value], dtype=np.int64) for value in (7, 10, 0)]
step = joiner.LocalStreamBuffer().push(left=record, right=record)
print(joiner.__file__, step.left_seq.tolist())
"""


def run(code: str = _JOIN, *, path: Path, **environment: str) -> str:
    known = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    known |= {"PYTHONPATH": str(path), **environment}
    command = [sys.executable, "-P", "-c", code]
    ran = subprocess.run(command, env=known, cwd=path.parent, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_they_are_compiled_from_an_archive_where_nothing_can_be_kept(tmp_path: Path) -> None:
    archive = tmp_path / "joiner.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for source in sorted((ROOT / "joiner").rglob("*.py")):
            file.write(source, source.relative_to(ROOT))
    no_folder = tmp_path / "file"
    no_folder.touch()
    # That they can be compiled is tested, and not how fast they are, so LLVM need not optimize them.
    said = run(path=archive, HOME=str(no_folder / "home"), XDG_CACHE_HOME=str(no_folder / "caches"), NUMBA_OPT="0")
    assert said.split() == [str(archive / "joiner" / "__init__.py"), "[0]"]


def test_uncompiled_they_do_the_same() -> None:
    assert run(path=ROOT, NUMBA_DISABLE_JIT="1").endswith("[0]\n")


_LOADED = """
import joiner
from joiner.core import compiled

def waiting():
    return sorted(package for package, loops in compiled._declared.items() if loops)

print(waiting())
joiner.LocalStreamBuffer()
print(waiting())
joiner.AlignBuffer({"a": joiner.ColumnRule()})
print(waiting())
"""


def test_loops_are_loaded_when_they_are_needed_and_no_sooner() -> None:
    assert run(_LOADED, path=ROOT).splitlines() == ["['joiner.alignment', 'joiner.core']", "['joiner.alignment']", "[]"]


class Loop:
    """A loop whose compilation can be interrupted once."""

    def __init__(self, *, interrupted: bool) -> None:
        self.signatures: list[str] = []
        self._interrupted, self._disabled = interrupted, False

    def compile(self, signature: str) -> None:
        if self._disabled:
            raise RuntimeError
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt
        self.signatures.append(signature)

    def disable_compile(self) -> None:
        self._disabled = True


def test_an_interrupted_compilation_goes_on_at_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = [Loop(interrupted=number == 1) for number in range(3)]
    monkeypatch.setitem(compiled._declared, "a.package", [(loop, "f(x)") for loop in loops])  # noqa: SLF001
    with pytest.raises(KeyboardInterrupt):
        compiled.compile_declared("a.package")
    compiled.compile_declared("a.package")
    assert [loop.signatures for loop in loops] == [["f(x)"]] * 3


_PART = """
from numba import types
from broker.wire.compiled import compiled

NUMBER = {number}

@compiled()
def number():
    return NUMBER
"""

_WHOLE = """
from numba import types
from broker.wire.compiled import compiled
from broker.wire.part import number

@compiled(types.int64, types.int64)
def more(than):
    return than + number()

print(more(0))
"""


def test_a_loop_is_recompiled_when_another_file_that_it_calls_has_changed(tmp_path: Path) -> None:
    package = tmp_path / "broker"
    package.mkdir()
    shutil.copy(ROOT / "broker" / "__init__.py", package)
    shutil.copytree(ROOT / "broker" / "wire", package / "wire", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "wire" / "whole.py").write_text(_WHOLE)
    for number in (5, 70):
        (package / "wire" / "part.py").write_text(_PART.format(number=number))
        given = os.environ | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
        command = [sys.executable, "-P", "-m", "broker.wire.whole"]
        ran = subprocess.run(command, env=given, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert int(ran.stdout) == number
        assert list((tmp_path / "kept").rglob("*.nbc")), "the compiled loop is cached"
