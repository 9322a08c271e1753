"""Breaks the rules of the core and of aligned rows, one at a time, and checks that a test fails for each.

``python -m tests.property.mutations --report docs/evidence/mutations.md``. Each mutation is applied to a copy of the
project, in which the tests of its package run until the first failure. The exit status is 1 if one is not detected.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.property.alignment_mutations import ALIGNMENT_MUTATIONS
from tests.property.core_mutations import CORE_MUTATIONS
from tests.property.mutation import ALIGNMENT, CORE, Mutation

ROOT: Final = Path(__file__).parents[2]
_COPIED: Final = ("joiner", "broker", "tests", "pyproject.toml")
_FASTEST: Final = "tests/property/test_engine.py::test_the_same_for_thousands_of_seeds"
_TESTS: Final = {
    CORE: (
        _FASTEST,
        "tests/property/test_bounds.py",
        "tests/property/test_engine.py",
        "tests/property/test_laws.py",
        "tests/property/test_pandas.py",
    ),
    ALIGNMENT: (
        "tests/property/test_alignment.py",
        "tests/property/test_alignment_grid.py",
        "tests/property/test_bounds.py",
    ),
}
_PLAIN: Final = ("-W", "ignore::RuntimeWarning")
"""Without compilation, numpy warns if a difference of times overflows int64; that is intended (`core.compiled.gap`)."""
_FAILED: Final = re.compile(r"^FAILED \S+::(\w+)", re.MULTILINE)


MUTATIONS: Final = (*CORE_MUTATIONS, *ALIGNMENT_MUTATIONS)


def detected_by(mutation: Mutation) -> str | None:
    """Return the first test that fails, or None."""
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        for name in _COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        file = folder / mutation.path
        file.write_text(broken(file.read_text(), mutation))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *_PLAIN]
        command += _TESTS[mutation.package]
        # Compiling the core would take longer than running it uncompiled until the first failure.
        environment = os.environ | {
            "PYTHONPATH": str(folder),
            "LSB_HYPOTHESIS": "no-shrinking",
            "NUMBA_DISABLE_JIT": "1",
        }
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        found = _FAILED.search(ran.stdout)
        if ran.returncode and not found:
            raise RuntimeError(f"{mutation.rule}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
        return found.group(1) if found else None


def broken(text: str, mutation: Mutation) -> str:
    """Return the text with the mutation applied. Raise ValueError unless the text to replace occurs exactly once."""
    if text.count(mutation.before) != 1:
        message = f"{mutation.rule}: {mutation.before!r} occurs {text.count(mutation.before)} times in {mutation.file}"
        raise ValueError(message)
    return text.replace(mutation.before, mutation.after)


def main() -> int:
    """Apply each mutation, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.mutations", description=__doc__)
    parser.add_argument("--report", type=Path, help="Markdown file to write")
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs (default: 2)")
    options = parser.parse_args()
    began_s, rows, missed = time.monotonic(), [], 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutation, test in zip(MUTATIONS, pool.map(detected_by, MUTATIONS), strict=True):
            missed += test is None
            rows.append(f"| {mutation.rule} | `{mutation.file}` | {f'`{test}`' if test else '**nothing**'} |")
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
    took_s = time.monotonic() - began_s
    head = [
        "# Mutations of the core",
        "",
        "Each mutation breaks one rule. The engine tests run until one fails: `python -m tests.property.mutations`.",
        f"{len(rows)} mutations, {missed} undetected, {took_s:.0f} s, {datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| broken rule | file | detected by |",
        "|---|---|---|",
    ]
    if options.report is not None:
        options.report.write_text("\n".join([*head, *rows, ""]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
