"""Is each rule of the core held by some test? Break them, one at a time, and see that the tests notice.

``python -m tests.property.mutations --report docs/evidence/mutations.md``. Each mutation is made in a copy of the
project, where the tests of the engine are run until the first of them fails. Exit status 1 where one is not noticed.
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
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
CORE: Final = "joiner/core"
_COPIED: Final = ("joiner", "broker", "tests", "pyproject.toml")
_QUICKEST: Final = "tests/property/test_engine.py::test_the_same_for_thousands_of_seeds"
_TESTS: Final = (
    _QUICKEST,
    "tests/property/test_engine.py",
    "tests/property/test_laws.py",
    "tests/property/test_pandas.py",
)
_FAILED: Final = re.compile(r"^FAILED \S+::(\w+)", re.MULTILINE)


class Mutation(NamedTuple):
    """What is broken: the rule as it is then, the file of the core, and its text before and after."""

    rule: str
    file: str
    before: str
    after: str


MUTATIONS: Final = (
    Mutation(
        "prev is certain at an equal frontier",
        "match.py",
        "known.frontier > ts, next_ts",
        "known.frontier >= ts, next_ts",
    ),
    Mutation(
        "next is certain only below the frontier",
        "match.py",
        "next_ts <= known.frontier\n",
        "next_ts < known.frontier\n",
    ),
    Mutation(
        "prev was certain at an equal frontier",
        "match.py",
        "prev_now.take(old) & (frontier > ts)",
        "prev_now.take(old) & (frontier >= ts)",
    ),
    Mutation(
        "next was certain only below the frontier",
        "match.py",
        "behind & ((next_ts <= frontier)",
        "behind & ((next_ts < frontier)",
    ),
    Mutation(
        "an equal time is not next for certain", "match.py", "        reached |= next_ts == ts\n", "        pass\n"
    ),
    Mutation(
        "an equal time was not next for certain",
        "match.py",
        "((next_ts <= frontier) | (next_ts == ts))",
        "(next_ts <= frontier)",
    ),
    Mutation(
        "next was certain without its partner", "match.py", "next_now.take(old) & behind & ", "next_now.take(old) & "
    ),
    Mutation(
        "equal times of the other side are not prev",
        "match.py",
        "        has_prev[lefts] = has_next[rights] = True\n",
        "        has_next[rights] = True\n",
    ),
    Mutation(
        "equal times of the other side are not next",
        "match.py",
        "        has_prev[lefts] = has_next[rights] = True\n",
        "        has_prev[lefts] = True\n",
    ),
    Mutation(
        "the first of equal times is prev",
        "match.py",
        "prev[lefts] = ties.spread(ties.start + ties.length - 1)",
        "prev[lefts] = ties.spread(ties.start + 1)",
    ),
    Mutation(
        "a neighbour of another key is prev",
        "match.py",
        "has_prev = prev >= of_key.spread(of_key.start)",
        "has_prev = prev >= 0",
    ),
    Mutation(
        "a neighbour of another key is next",
        "match.py",
        "has_next = following < of_key.spread(of_key.start + of_key.length)",
        "has_next = following < len(following)",
    ),
    Mutation("a draw goes to next", "match.py", "(to_prev <= to_next)", "(to_prev < to_next)"),
    Mutation("nearest waits at an equal distance", "match.py", "to_prev[which] <= gap(", "to_prev[which] < gap("),
    Mutation(
        "nearest prev is certain at an equal frontier", "match.py", "(frontier > ts[which])", "(frontier >= ts[which])"
    ),
    Mutation(
        "nearest next is certain only below the frontier",
        "match.py",
        "(next_ts[which] <= frontier)",
        "(next_ts[which] < frontier)",
    ),
    Mutation(
        "what was decided is decided again, nearest", "match.py", "    prev_now[done] = next_now[done] = False\n", ""
    ),
    Mutation(
        "what was decided is decided again", "match.py", "    next_now[done] = False\n    next_open", "    next_open"
    ),
    Mutation(
        "mutual neighbours are told by both", "match.py", "    prev_told[1:] &= ~(begins & following.now[:-1])\n", ""
    ),
    Mutation(
        "what prev has told, next tells again", "match.py", "    next_told[:-1] &= ~(begins & prev.before[1:])\n", ""
    ),
    Mutation(
        "pairs of equal times are told again",
        "match.py",
        "segment_starts(code >> 1) & (code & 1).astype(bool)",
        "segment_starts(code >> 1)",
    ),
    Mutation("the driver does not matter", "match.py", '(_NOTHING if driver == "right" else wants)', "wants"),
    Mutation(
        "a time at the frontier is late",
        "frontier.py",
        "np.flatnonzero(records.ts < before)",
        "np.flatnonzero(records.ts <= before)",
    ),
    Mutation(
        "a time at the frontier is late, with marks",
        "frontier.py",
        "return records.ts < np.maximum(of_all, of_keys)",
        "return records.ts <= np.maximum(of_all, of_keys)",
    ),
    Mutation(
        "lateness does not count", "frontier.py", "less(records.ts, self.lateness_ns[side])", "less(records.ts, 0)"
    ),
    Mutation(
        "lateness is that of the other side", "frontier.py", "self.lateness_ns[side])", "self.lateness_ns[1 - side])"
    ),
    Mutation(
        "what is late for its key moves the partition",
        "frontier.py",
        "np.flatnonzero(records.ts >= of_keys)",
        "np.flatnonzero(records.ts >= NEVER)",
    ),
    Mutation(
        "marks act on the whole batch",
        "frontier.py",
        "highest[np.searchsorted(seq[order], asked)]",
        "np.full_like(asked, highest[-1])",
    ),
    Mutation(
        "batches in order are never late",
        "frontier.py",
        "records.in_order and promise[0] >= highest",
        "records.in_order",
    ),
    Mutation(
        "the frontier falls back",
        "frontier.py",
        "np.maximum(known, highest[of_key.start + of_key.length - 1])",
        "highest[of_key.start + of_key.length - 1]",
    ),
    Mutation(
        "late for an earlier one of the batch is not late",
        "frontier.py",
        "    earlier[1:] = highest[:-1]\n",
        "    earlier[1:] = NEVER\n",
    ),
    Mutation("equal to the frontier is let go", "release.py", "alive = merged.ts >= ", "alive = merged.ts > "),
    Mutation("prev of what comes is let go", "release.py", "    needed[entries[last[last >= 0]]] = True\n", ""),
    Mutation(
        "what waits for its next is let go",
        "release.py",
        "needed = relations.next.open.copy()",
        "needed = np.zeros_like(relations.next.open)",
    ),
    Mutation(
        "prev of what is pending is let go",
        "release.py",
        "    add_tentative(needed, merged.ts, relations.prev, tolerance_ns)\n",
        "",
    ),
    Mutation(
        "the tail is cut behind its run",
        "release.py",
        "merged.runs.begin[last] - 1, start",
        "merged.runs.begin[last], start",
    ),
    Mutation(
        "nothing is noted as done",
        "release.py",
        "~is_kept.take(relation.partner.take(certain))",
        "np.zeros(len(certain), dtype=bool)",
    ),
    Mutation("everything is held for ever", "release.py", "    needed |= alive\n", "    needed |= True\n"),
    Mutation(
        "the tolerance reaches less far into what comes",
        "release.py",
        "return ts >= less(until, tolerance_ns)",
        "return ts > less(until, tolerance_ns)",
    ),
    Mutation(
        "the tolerance itself is too far", "release.py", "<= np.uint64(tolerance_ns)", "< np.uint64(tolerance_ns)"
    ),
    Mutation(
        "records without identity are duplicates",
        "held.py",
        "np.where(right, bool(identified[1]), bool(identified[0]))",
        "right | True",
    ),
    Mutation(
        "equal identities of both sides are duplicates",
        "held.py",
        "2 * group[which] + right[which]",
        "2 * group[which]",
    ),
    Mutation("equal times have no ordinals", "held.py", "ordinal[new] << ORDINAL", "0 * ordinal[new]"),
    Mutation(
        "what was held gets another ordinal", "held.py", "new = np.flatnonzero(~old[at])", "new = np.arange(len(at))"
    ),
    Mutation(
        "one that comes at the next one's time is its prev",
        "unmatched.py",
        "as_prev = behind > comes",
        "as_prev = behind >= comes",
    ),
    Mutation("whoever comes finds each one before it", "unmatched.py", "as_next = ahead & first", "as_next = ahead"),
    Mutation(
        "what is pending finds nobody",
        "unmatched.py",
        "        add_tentative(possible, merged.ts, relation, tolerance_ns)\n",
        "        pass\n",
    ),
    Mutation(
        "the tolerance does not end the waiting",
        "unmatched.py",
        "possible &= (frontier != FOREVER) & reaches(merged.ts, frontier, tolerance_ns)",
        "possible &= frontier != FOREVER",
    ),
    Mutation(
        "what the other side may still send waits",
        "waiting.py",
        "(ts > known.frontier.take(kept))",
        "True",
    ),
    Mutation(
        "what has the time of the other side's last waits",
        "waiting.py",
        "(ts > merged.ts.take(begin - 1))",
        "(ts >= merged.ts.take(begin - 1))",
    ),
    Mutation(
        "the last ones wait, too",
        "waiting.py",
        "found[at] = ts < of_key",
        "found[at] = ts <= of_key",
    ),
    Mutation(
        "what its own side may still come before waits",
        "waiting.py",
        "at = (is_settled & is_ahead)",
        "at = is_ahead",
    ),
    Mutation("the first one waits, too", "waiting.py", "found[at.take(of_key.start)] = False", "pass"),
    Mutation(
        "none but those reached wait no longer",
        "waiting.py",
        "one_more = (behind < end) & (first",
        "one_more = (behind < start) & (first",
    ),
    Mutation(
        "what was reached at its very time waits on",
        "waiting.py",
        '(ts.take(middle, mode="clip") <= until)',
        '(ts.take(middle, mode="clip") < until)',
    ),
    Mutation(
        "records do not wake what waits, frontiers alone do",
        "engine.py",
        "np.maximum.at(reached[side], keys.searchsorted(records.key), records.ts)",
        "pass",
    ),
)


def noticed_by(mutation: Mutation) -> str | None:
    """The test that fails first; None: none does."""
    with tempfile.TemporaryDirectory() as folder:
        for name in _COPIED:
            source, target = ROOT / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        file = Path(folder, CORE, mutation.file)
        file.write_text(broken(file.read_text(), mutation))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *_TESTS]
        known = os.environ | {"PYTHONPATH": folder, "LSB_HYPOTHESIS": "no-shrinking"}
        ran = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, check=False)
        found = _FAILED.search(ran.stdout)
        if ran.returncode and not found:
            raise RuntimeError(f"{mutation.rule}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
        return found.group(1) if found else None


def broken(text: str, mutation: Mutation) -> str:
    """The text of a file with the mutation in it. Raises ValueError where it is not there exactly once."""
    if text.count(mutation.before) != 1:
        message = f"{mutation.rule}: {mutation.before!r} is {text.count(mutation.before)} times in {mutation.file}"
        raise ValueError(message)
    return text.replace(mutation.before, mutation.after)


def main() -> int:
    """Make each mutation, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.mutations", description=__doc__)
    parser.add_argument("--report", type=Path, help="Markdown file to write")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default: 2)")
    options = parser.parse_args()
    began_s, rows, missed = time.monotonic(), [], 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutation, test in zip(MUTATIONS, pool.map(noticed_by, MUTATIONS), strict=True):
            missed += test is None
            rows.append(f"| {mutation.rule} | `{mutation.file}` | {f'`{test}`' if test else '**nothing**'} |")
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
    took_s = time.monotonic() - began_s
    head = [
        "# Mutations of the core",
        "",
        "Each breaks one rule; the tests of the engine are run until one fails: `python -m tests.property.mutations`.",
        f"{len(rows)} mutations, {missed} unnoticed, {took_s:.0f} s, {datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| what is broken | in | noticed by |",
        "|---|---|---|",
    ]
    if options.report is not None:
        options.report.write_text("\n".join([*head, *rows, ""]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
