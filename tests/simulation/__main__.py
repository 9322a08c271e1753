"""Runs many histories: ``python -m tests.simulation --seeds 1-10000 --jobs 2 --report docs/evidence/simulation.md``.

Runs one history per seed, prints the differences with their timelines, and writes a report as Markdown and JSON. With
``--bugs`` it runs the seeds with each planted defect instead, and prints how many of them found the defect. With
``--finders`` it replaces the stale finders in ``finders.json``. The exit status is 1 if a history differs or a defect
is not found.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.seed_text import parse_seeds
from tests.simulation.align_bugs import ALIGN_BUGS
from tests.simulation.bugs import BUGS
from tests.simulation.seeds import Tally, play_all

_BLOCK = 500


def main() -> int:
    """Run the command line. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1-1000", help='such as "1-10000" or "7 12" (default: 1-1000)')
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default: 1)")
    parser.add_argument("--report", type=Path, help="Markdown file to write, with a JSON file beside it")
    parser.add_argument("--bugs", action="store_true", help="run the seeds with each planted defect")
    parser.add_argument("--finders", action="store_true", help="find new histories for defects with stale finders")
    parser.add_argument("--timeline", action="store_true", help="print the whole timeline of each seed")
    options = parser.parse_args()
    if options.finders:
        from tests.simulation.searches import renew_finders  # noqa: PLC0415 - only this command needs it

        return 1 if renew_finders(options.jobs, lambda line: print(line, flush=True)) else 0
    seeds = parse_seeds(options.seeds)
    if options.bugs:
        return _play_bugs(seeds)
    if options.timeline:
        return _tell(seeds)
    tally = Tally()
    for at in range(0, len(seeds), _BLOCK):
        tally.add(play_all(seeds[at : at + _BLOCK], options.jobs))
        print(f"{tally.seeds} histories in {tally.took_s:.0f} s, {len(tally.different)} differ", flush=True)
        if options.report is not None:
            # Written after each block, so that an interrupted run leaves a report.
            played = f"{seeds[0]}-{seeds[tally.seeds - 1]}"
            _write_report(options.report, _facts(tally, played, options.jobs))
    for text in tally.texts[:3]:
        print(text)
    print(f"seeds that differ: {tally.different[:50]}")
    return 1 if tally.different else 0


def _tell(seeds: list[int]) -> int:
    from tests.simulation.history import play  # noqa: PLC0415 - only this command needs it

    outcomes = [play(seed) for seed in seeds]
    for outcome in outcomes:
        print(outcome.text(lines=100_000))
    return 1 if any(outcome.difference for outcome in outcomes) else 0


def _play_bugs(seeds: list[int]) -> int:
    missed = 0
    for name, bug in (BUGS | ALIGN_BUGS).items():
        with bug():
            tally = play_all(seeds)
        missed += not tally.different
        first = f"the first at seed {tally.different[0]}" if tally.different else "NOT FOUND"
        print(f"{name:32} found in {len(tally.different):4} of {tally.seeds} histories, {first}", flush=True)
    return 1 if missed else 0


def _write_report(path: Path, facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n")
    path.write_text(_markdown(facts, path.name))


def _facts(tally: Tally, seeds: str, jobs: int) -> dict[str, Any]:
    kinds = ("killed", "frozen", "lost", "failed")
    counts = tally.counts
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "confluent_kafka": confluent_kafka.__version__,
        "seeds": seeds,
        "workers": jobs,
        "histories": tally.seeds,
        "differences": len(tally.different),
        "seeds that differ": tally.different,
        "histories per minute": round(tally.seeds / tally.took_s * 60),
        "faults": {kind: sum(count for name, count in counts.items() if name.startswith(kind)) for kind in kinds},
        "counts": dict(sorted(counts.items())),
    }


def _markdown(facts: dict[str, Any], name: str) -> str:
    counts, faults = facts["counts"], facts["faults"]
    rows = [
        ("histories", facts["histories"]),
        ("**differences**", f"**{facts['differences']}**"),
        ("histories per minute", facts["histories per minute"]),
        ("process starts", counts["starts"]),
        ("processes killed inside a call", faults["killed"]),
        ("processes frozen inside a call", faults["frozen"]),
        ("requests or answers lost", faults["lost"]),
        ("calls that failed", faults["failed"]),
        ("transactions aborted", counts["aborted transactions"]),
        ("changes of a unit's owner", counts["changes of owner"]),
        ("units given up to another owner", counts.get("given up to another owner", 0)),
        ("input records judged at the end", counts["input records"]),
        ("results, late records and dead letters, each found once", counts["outputs"]),
        ("judgements", counts["judged"]),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    each = "\n".join(f"| {name} | {count} |" for name, count in counts.items())
    return f"""# Simulated histories

The runner's production code over an in-memory broker; a seed decides what happens. Made on {facts["date"]} with Python
{facts["python"]}, confluent_kafka {facts["confluent_kafka"]}, {facts["workers"]} worker processes:
`python -m tests.simulation --seeds {facts["seeds"]} --jobs {facts["workers"]} --report docs/evidence/{name}`

| | |
|---|---:|
{table}

Faults of the processes, and what sources, operators and the broker did:

| | |
|---|---:|
{each}
"""


if __name__ == "__main__":
    sys.exit(main())
