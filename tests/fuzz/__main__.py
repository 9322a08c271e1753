"""Fuzzing: ``python -m tests.fuzz --cases 1000000 --seed 1 --jobs 2 --report docs/evidence/fuzz.md``.

Runs cases of hostile input, prints the findings, and writes a report as Markdown and JSON. ``--case N`` runs case N
alone. The exit status is 1 if any case yields something other than a value or a clear error.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.fuzz.play import CPU_S, MEMORY_BYTES, Tally, play, play_all

_SHOWN_EVERY: Final = 50_000
_FINDINGS_SHOWN: Final = 20


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="number of cases (default: 100000)")
    parser.add_argument("--seed", type=int, default=1, help="seed for all cases (default: 1)")
    parser.add_argument("--case", type=int, help="run only this case")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default: 1)")
    parser.add_argument("--report", type=Path, help="Markdown file to write; a JSON file is written next to it")
    options = parser.parse_args()
    if options.case is not None:
        tally = play(options.seed, range(options.case, options.case + 1))
        print("\n".join(tally.findings) or ", ".join(tally.outcomes))
        return 1 if tally.findings else 0
    total = _play(options.seed, options.cases, options.jobs)
    if options.report is not None:
        _write_report(options.report, _facts(total, options))
    print(f"{total.cases} cases, {len(total.findings)} findings, {total.took_s:.0f} s")
    return 1 if total.findings else 0


def _play(seed: int, cases: int, jobs: int) -> Tally:
    total, began_s = Tally(), time.monotonic()
    for tally in play_all(seed, range(cases), jobs):
        for text in tally.findings[: max(0, _FINDINGS_SHOWN - len(total.findings))]:
            print(text, flush=True)
        total.add(tally)
        total.took_s = time.monotonic() - began_s
        if total.cases % _SHOWN_EVERY == 0:
            print(f"{total.cases} cases in {total.took_s:.0f} s, {len(total.findings)} findings", flush=True)
    return total


def _facts(total: Tally, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "seed": options.seed,
        "cases": total.cases,
        "findings": len(total.findings),
        "jobs": options.jobs,
        "took_s": round(total.took_s, 1),
        "longest_s": round(total.longest_s, 3),
        "cpu_s_max": CPU_S,
        "memory_bytes_max": MEMORY_BYTES,
        "outcomes": dict(sorted(total.outcomes.items())),
    }


def _write_report(path: Path, facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n")
    targets: dict[str, Counter[str]] = {}
    for name, count in facts["outcomes"].items():
        target, _, outcome = name.partition(": ")
        targets.setdefault(target, Counter())[outcome] += count
    rows = [
        f"| {target} | {outcome} | {count} |" for target, counts in targets.items() for outcome, count in counts.items()
    ]
    path.write_text(
        "# Hostile input\n\n"
        "Valid input is altered in its structure and its bytes. Each case must yield a value or a clear error,\nwithin "
        f"{facts['cpu_s_max']:g} s of CPU time and {facts['memory_bytes_max'] >> 20} MiB. "
        f"Made on {facts['date']} with Python {facts['python']}:\n"
        f"`python -m tests.fuzz --cases {facts['cases']} --seed {facts['seed']} --jobs {facts['jobs']} --report "
        "docs/evidence/fuzz.md`\n\n"
        f"{facts['cases']} cases, **{facts['findings']} findings**, {facts['took_s']:.0f} s; the longest took "
        f"{facts['longest_s']:.3f} s.\n\n"
        "| input | outcome | cases |\n|---|---|---:|\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
