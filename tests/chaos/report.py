"""Writes the report of chaos runs: a row per run as JSON, and the rows, their totals and all faults as Markdown.

Timelines are not kept, because the seed reproduces a run. The Markdown counts their events.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, Final

from confluent_kafka import libversion

from bench.harness.report import json_text
from broker.stack.parts import HIVEMQ_VERSION, KAFKA_VERSION
from tests.chaos.play import Played
from tests.integration.services import ROOT

_COLUMNS: Final = (
    "seed", "kills", "other faults", "events", "records", "expected", "found", "missing", "doubled", "unexpected",
    "altered", "s",
)  # fmt: skip
_SUMMED: Final = _COLUMNS[1:-1]
_NOT_KEPT: Final = frozenset({"schedule", "timeline"})


def row_of(seed: int | str, played: Played, took_s: float) -> dict[str, Any]:
    """Return the report's row for a run."""
    total = played.report["total"]
    counts = played.report["counts"]
    return {
        "seed": seed,
        "kills": played.kills,
        "other faults": played.others,
        "events": played.report["events"]["rows"],
        "records": counts.get("input records", 0),
        **{name: total[name] for name in ("expected", "found", "missing", "doubled", "unexpected", "altered")},
        "s": round(took_s),
    }


def write_report(path: Path, title: str, rows: list[dict[str, Any]], versions: dict[str, str]) -> None:
    """Write the report twice: to ``path`` with suffix ``.json`` and to ``path`` with suffix ``.md``."""
    kept = [{name: value for name, value in row.items() if name not in _NOT_KEPT} for row in rows]
    path.with_suffix(".json").write_text(json_text({"versions": versions, "runs": kept}) + "\n")
    path.with_suffix(".md").write_text(_markdown(title, rows, versions))


def versions_of() -> dict[str, str]:
    """Return the versions, the machine and the date of a run."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607 - its path varies
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit.stdout.strip(),
        "machine": f"{platform.system()} {platform.release()}, {os.cpu_count()} cores",
        "Python": platform.python_version(),
        "librdkafka": libversion()[0],
        **{name: importlib.metadata.version(name) for name in ("confluent-kafka", "paho-mqtt", "influxdb-client")},
        "MQTT broker": f"HiveMQ CE {HIVEMQ_VERSION}",
        "Kafka": KAFKA_VERSION,
    }


def _markdown(title: str, rows: list[dict[str, Any]], versions: dict[str, str]) -> str:
    sums = {name: sum(row[name] for row in rows) for name in _SUMMED}
    what = Counter(
        (entry["what"], entry["target"], entry["detail"] if entry["what"] == "died" else "")
        for row in rows
        for entry in row.get("timeline", [])
        if not entry["what"].startswith(("end of", "all is", "die")) or entry["what"] == "died"
    )
    lines = [f"# {title}", ""]
    lines += [f"- {name}: {value}" for name, value in versions.items()]
    lines += ["", "| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    lines += ["| " + " | ".join(str(row[column]) for column in _COLUMNS) + " |" for row in rows]
    lines += ["| **all** | " + " | ".join(f"**{sums[name]}**" for name in _SUMMED) + " | |", ""]
    lines += ["## What was done", "", "| what | to | where | times |", "|---|---|---|---|"]
    lines += [f"| {a} | {b} | {c} | {n} |" for (a, b, c), n in sorted(what.items())]
    return "\n".join([*lines, ""])
