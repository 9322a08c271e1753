"""Compiled loops work wherever the package is installed, and are recompiled when a source file changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]

_JOIN: Final = """
import numpy as np, joiner
record = [np.array([value], dtype=np.int64) for value in (7, 10, 0)]
step = joiner.LocalStreamBuffer().push(left=record, right=record)
print(joiner.__file__, step.left_seq.tolist())
"""


def run(*, path: Path, **environment: str) -> str:
    known = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    known |= {"PYTHONPATH": str(path), **environment}
    command = [sys.executable, "-P", "-c", _JOIN]
    ran = subprocess.run(command, env=known, cwd=path.parent, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_they_are_compiled_from_an_archive_where_nothing_can_be_kept(tmp_path: Path) -> None:
    archive = tmp_path / "joiner.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for source in sorted((ROOT / "joiner").rglob("*.py")):
            file.write(source, source.relative_to(ROOT))
    no_folder = tmp_path / "file"
    no_folder.touch()
    said = run(path=archive, HOME=str(no_folder / "home"), XDG_CACHE_HOME=str(no_folder / "caches"))
    assert said.split() == [str(archive / "joiner" / "__init__.py"), "[0]"]


def test_uncompiled_they_do_the_same() -> None:
    assert run(path=ROOT, NUMBA_DISABLE_JIT="1").endswith("[0]\n")


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
