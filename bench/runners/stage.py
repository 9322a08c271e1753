"""Measures how the throughput of the Spark stage depends on the number of its tasks, on a cluster of two workers.

``python -m bench.runners.stage --report docs/evidence/bench_stage`` writes ``.json`` and ``.md``. Spark's
``local-cluster`` master starts two workers, each with two task slots and an executor of its own, on this machine. A
plain process takes part for comparison. All read the same topic, one after another, turn by turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.contest.contenders import CONTENDERS, application_of
from bench.contest.job import Contender, Job, Limits
from bench.contest.running.arena import Arena
from bench.contest.running.runs import Task, throughput
from bench.harness.pipeline import PARTITIONS, about, own_stack
from bench.harness.report import spread, table, write

TASKS: Final = (1, 2, 4)
PROCESS: Final = "plain process"
_MASTER: Final = "local-cluster[2,2,1024]"
_CONFIG: Final = {"spark.executor.memory": "512m"}
_WARM_UP_RUNS: Final = 2


def of_stage(job: Job, *, tasks: int) -> list[list[str]]:
    """Return the command of a stage with ``tasks`` tasks on two workers."""
    settings = {
        "LSB_SPARK__MASTER": _MASTER,
        "LSB_SPARK__INSTANCES": str(tasks),
        "LSB_SPARK__CONFIG": json.dumps(_CONFIG),
    }
    given = [f"{name}={value}" for name, value in settings.items()]
    return [["env", *given, *application_of(job).command(instance="0", command="spark")]]


def contenders() -> list[Contender]:
    """Return a plain process, and a stage for each number of tasks."""
    stages = [Contender(_name(tasks), "joiner spark", partial(of_stage, tasks=tasks)) for tasks in TASKS]
    return [CONTENDERS[PROCESS], *stages]


def _name(tasks: int) -> str:
    return f"stage, {tasks} task{'s' if tasks > 1 else ''}"


def measure(arena: Arena, records: int, turns: int) -> list[dict[str, Any]]:
    """Return the figures of each run. Two earlier runs warm up the broker."""
    rows: list[dict[str, Any]] = []
    chosen = contenders()
    for turn in range(-_WARM_UP_RUNS, turns):
        for number in range(len(chosen)):
            one = chosen[(number + turn) % len(chosen)] if turn >= 0 else chosen[0]
            figures = throughput(arena, Task(one, "alternating", records, Limits()))
            shown = ", ".join(f"{name} {figures[name]:,.4g}" for name in ("records_per_s", "cpu_s_per_million"))
            print(f"{one.name}: {shown}, complete {figures['complete']}, double {figures['double']}", flush=True)
            if turn < 0:
                break
            rows.append({"contender": one.name, "turn": turn + 1, **figures})
    return rows


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=3_200_000, help="records in the input (default 3,200,000)")
    parser.add_argument("--turns", type=int, default=5, help="runs of each contender (default 5)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/bench_stage"), help="path of the .json and .md files")
    options = parser.parse_args()
    with own_stack() as (stack, folder):
        rows = measure(Arena(stack, folder), options.records, options.turns)
    ran = about() | {"records": options.records, "units": PARTITIONS, "workers": 2, "task slots of a worker": 2}
    write(options.report, "The Spark stage by its number of tasks", ran, rows, _lines(rows))
    print("\n".join(_lines(rows)))
    return 0


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    found = []
    base = _median(rows, PROCESS, "records_per_s")
    for one in contenders():
        of_one = [row for row in rows if row["contender"] == one.name]
        rates = [row["records_per_s"] / 1000 for row in of_one]
        used = [row["cpu_s_per_million"] for row in of_one]
        kafka = [row["kafka_cpu_s_per_million"] for row in of_one]
        idle = [row["idle_cores"] for row in of_one]
        ratio = f"{statistics.median(rates) * 1000 / base:.2f}"
        right = all(row["complete"] == 1 and not row["double"] and not row["excess"] for row in of_one)
        found.append(
            (one.name, spread(rates, 0), ratio, spread(used), spread(kafka), spread(idle), "yes" if right else "no")
        )
    heads = [
        "runner",
        "thousand records/s",
        "median / plain process",
        "CPU s a million records",
        "of Kafka",
        "idle cores",
        "each result once",
    ]
    return ["Minimum / median / maximum of all turns:", *table(heads, found)]


def _median(rows: list[dict[str, Any]], name: str, figure: str) -> float:
    values: list[float] = [row[figure] for row in rows if row["contender"] == name]
    return statistics.median(values)


if __name__ == "__main__":
    sys.exit(main())
