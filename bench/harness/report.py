"""Writes the report of a benchmark: a JSON file with the machine and all figures, and a Markdown page with tables."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

_LINE_LENGTH_MAX: Final = 1000


def machine(*packages: str) -> dict[str, Any]:
    """Return the date, the number of cores, the processor, and the versions of Python and ``packages``."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "Python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def java_version() -> str:
    """Return the version of the first Java on the ``PATH``, or ``unknown`` if there is none."""
    try:
        ran = subprocess.run(["java", "-version"], check=True, capture_output=True, text=True)  # noqa: S607 - any Java
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    # The first line is, for example: openjdk version "17.0.15" 2025-04-15
    return [*ran.stderr.split('"'), "unknown"][1]


def code_commit(folder: Path) -> str:
    """Return the last commit in a git checkout that changed anything besides documentation and results.

    Append ``-dirty`` if such a change is uncommitted. Return ``unknown`` outside a checkout.
    """
    code = ["--", ".", ":!docs", ":!bench/results"]

    def git(*given: str) -> str:
        command = ["git", "-C", str(folder), *given, *code]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603

    try:
        return git("log", "-1", "--format=%h") + ("-dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def seconds_of(run: Callable[[], object]) -> float:
    """Return the duration of a call in seconds. Garbage is collected before the clock starts."""
    gc.collect()
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return ``minimum / median / maximum`` as text."""
    return " / ".join(f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table, preceded by an empty line."""
    lines = ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]


def write(path: Path, title: str, about: dict[str, Any], figures: Any, lines: Sequence[str]) -> None:
    """Write two files: the figures to ``path`` with the suffix ``.json``, and a page to ``path`` with ``.md``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json_text({"machine": about, "figures": figures}) + "\n")
    head = [f"# {title}", "", *(f"- {name}: {value}" for name, value in about.items())]
    path.with_suffix(".md").write_text("\n".join([*head, "", *lines, ""]))


def json_text(value: Any, indent: int = 0) -> str:
    """Return JSON in which every value that fits on a line is kept on one, so that a diff shows which runs changed."""
    text = json.dumps(value)
    if indent + len(text) <= _LINE_LENGTH_MAX or not isinstance(value, dict | list) or not value:
        return text
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(name)}: {json_text(one, indent + 1)}" for name, one in value.items()]
    else:
        parts = [f"{inner}{json_text(one, indent + 1)}" for one in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([begin, ",\n".join(parts), " " * indent + end])
