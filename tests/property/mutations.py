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
_PLAIN: Final = ("-W", "ignore::RuntimeWarning")
"""Uncompiled, numpy warns where a difference of times goes beyond int64, as it is meant to (`core.compiled.gap`)."""
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
        "(NOW if sight.now > sight.ts else 0)",
        "(NOW if sight.now >= sight.ts else 0)",
    ),
    Mutation(
        "prev was certain at an equal frontier",
        "match.py",
        "sight.is_old and sight.before > sight.ts",
        "sight.is_old and sight.before >= sight.ts",
    ),
    Mutation(
        "prev is decided at an equal frontier",
        "match.py",
        "of_prev = OPEN if sight.now <= sight.ts else 0",
        "of_prev = OPEN if sight.now < sight.ts else 0",
    ),
    Mutation(
        "next is certain only below the frontier",
        "match.py",
        "sight.next_ts <= frontier or",
        "sight.next_ts < frontier or",
    ),
    Mutation("an equal time is not next for certain", "match.py", " or sight.next_ts == sight.ts)", ")"),
    Mutation(
        "next was certain without its partner",
        "match.py",
        "sight.is_old and sight.is_next_old and _is_next_known",
        "sight.is_old and _is_next_known",
    ),
    Mutation(
        "next was certain without the record",
        "match.py",
        "sight.is_old and sight.is_next_old and _is_next_known",
        "sight.is_next_old and _is_next_known",
    ),
    Mutation(
        "equal times of the other side are not prev",
        "match.py",
        "other_times[behind] <= ts",
        "other_times[behind] < ts",
    ),
    Mutation(
        "equal times of the other side are not next", "match.py", "other_times[first] < ts", "other_times[first] <= ts"
    ),
    Mutation(
        "the first of equal times is prev",
        "match.py",
        "            while behind < end and other_times",
        "            if behind < end and other_times",
    ),
    Mutation(
        "a neighbour of another key is prev",
        "match.py",
        "                behind > begin,\n",
        "                behind > 0,\n",
    ),
    Mutation(
        "a draw goes to next",
        "match.py",
        "gap(sight.next_ts, sight.ts) < gap(sight.ts, sight.prev_ts))\n    is_known",
        "gap(sight.next_ts, sight.ts) <= gap(sight.ts, sight.prev_ts))\n    is_known",
    ),
    Mutation(
        "nearest waits at an equal distance",
        "match.py",
        "not gap(frontier, sight.ts) < gap(",
        "not gap(frontier, sight.ts) <= gap(",
    ),
    Mutation(
        "nearest prev is certain at an equal frontier",
        "match.py",
        "return frontier > sight.ts and (is_next_known",
        "return frontier >= sight.ts and (is_next_known",
    ),
    Mutation(
        "what was decided is decided again, nearest", "match.py", "    if sight.is_done:\n        return 0, 0\n", ""
    ),
    Mutation("what was decided is decided again", "match.py", "    if sight.is_done:\n        return of_prev, 0\n", ""),
    Mutation("what was certain is told again", "match.py", "known & (NOW | BEFORE) == NOW", "known & NOW"),
    Mutation("relations of the right records hold no pair", "match.py", " | _known(right_at, right_known, j, i)", ""),
    Mutation("those whose next it is are forgotten but one", "match.py", "        first -= 1\n", "        break\n"),
    Mutation("those whose previous it is are forgotten but one", "match.py", "        last += 1\n", "        break\n"),
    Mutation(
        "of equal times the pairs are those of unequal ones",
        "match.py",
        "        return min(first, following), max(prev, last), 1\n",
        "        return first, last, 1\n",
    ),
    Mutation(
        "equal times with nobody of their own are in no pair",
        "match.py",
        "    return following, prev, max(prev - following, 1)\n",
        "    return following, prev, len(left_at[0]) + 1\n",
    ),
    Mutation("the driver does not matter", "match.py", '(_NOTHING if driver == "right" else wants)', "wants"),
    Mutation(
        "a time at the frontier is late for its key",
        "frontier.py",
        "ts[i] < of_key[key[i]] or",
        "ts[i] <= of_key[key[i]] or",
    ),
    Mutation("a time at the frontier of all is late", "frontier.py", "or ts[i] < of_all[0]:", "or ts[i] <= of_all[0]:"),
    Mutation(
        "lateness does not count", "frontier.py", "promise = less(ts[i], lateness_ns)", "promise = less(ts[i], 0)"
    ),
    Mutation(
        "lateness is that of the other side",
        "frontier.py",
        "self.lateness_ns[side], self",
        "self.lateness_ns[1 - side], self",
    ),
    Mutation(
        "what is late for its key moves the partition",
        "frontier.py",
        "            count += 1\n            continue\n",
        "            count += 1\n",
    ),
    Mutation(
        "watermarks act on the record before them",
        "frontier.py",
        "watermark_seq[watermark] < seq[i]",
        "watermark_seq[watermark] < seq[i] + 2",
    ),
    Mutation(
        "watermarks act at the end of the batch",
        "frontier.py",
        "watermark_seq[watermark] < seq[i]",
        "watermark_seq[watermark] < NEVER",
    ),
    Mutation(
        "watermarks behind the last record are lost",
        "frontier.py",
        "range(watermark, len(watermark_key))",
        "range(watermark, watermark)",
    ),
    Mutation(
        "the frontier falls back",
        "frontier.py",
        "of_key[key[i]] = max(of_key[key[i]], promise)",
        "of_key[key[i]] = promise",
    ),
    Mutation(
        "a watermark moves the frontier back", "frontier.py", "of_key[key] = max(of_key[key], ts)", "of_key[key] = ts"
    ),
    Mutation("equal to the frontier is let go", "release.py", "and ts[at] < alive", "and ts[at] <= alive"),
    Mutation(
        "prev of what comes is let go",
        "release.py",
        "        if other_wants.prev:\n",
        "        if other_wants.prev and at < 0:\n",
    ),
    Mutation("what waits for its next is let go", "release.py", "is_open(relations.known[NEXT, at]) and", "False and"),
    Mutation(
        "prev of what is pending is let go",
        "release.py",
        "                at = min(at, prev)\n",
        "                at = min(at, end)\n",
    ),
    Mutation(
        "nothing is noted as done",
        "release.py",
        "                own.rows[NOTES, at] |= DONE\n",
        "                own.rows[NOTES, at] |= 0\n",
    ),
    Mutation("everything is held for ever", "release.py", "        kept[k] = at\n", "        kept[k] = own.begin[k]\n"),
    Mutation(
        "the tolerance reaches less far into what comes",
        "compiled.py",
        "until <= ts or gap(until, ts) <= tolerance",
        "until <= ts or gap(until, ts) < tolerance",
    ),
    Mutation(
        "the tolerance itself is too far",
        "compiled.py",
        "gap(max(one, other), min(one, other)) <= tolerance",
        "gap(max(one, other), min(one, other)) < tolerance",
    ),
    Mutation(
        "records without identity are duplicates",
        "engine.py",
        "                if self._identified[side]:\n",
        "                if not self._identified[side]:\n",
    ),
    Mutation(
        "the later one of the same is kept",
        "record_store.py",
        "repeats[first + order[n]] = True",
        "repeats[first + order[n - 1]] = True",
    ),
    Mutation(
        "equal times have no ordinals", "record_store.py", "((rows[NOTES, i - 1] >> ORDINAL) + 1) << ORDINAL", "0"
    ),
    Mutation("what was held gets another ordinal", "record_store.py", " and rows[SEQ, i] > side.since:", ":"),
    Mutation(
        "of equal times the later one stands first",
        "record_store.py",
        "table[TS, old] <= more[TS, new[at]]",
        "table[TS, old] < more[TS, new[at]]",
    ),
    Mutation(
        "one that comes at the next one's time is its prev",
        "unmatched.py",
        "wants.prev and behind > comes",
        "wants.prev and behind >= comes",
    ),
    Mutation("whoever comes finds each one before it", "unmatched.py", "until <= ts and before < ts", "until <= ts"),
    Mutation(
        "what is pending finds nobody",
        "unmatched.py",
        "                found[partner] = True\n",
        "                found[partner] = False\n",
    ),
    Mutation(
        "the tolerance does not end the waiting",
        "unmatched.py",
        "                and is_within(tolerance, until, ts[at])\n",
        "",
    ),
    Mutation(
        "what the other side may still send waits",
        "backlog.py",
        "        reached = other_frontier[k]\n",
        "        reached = -FOREVER\n",
    ),
    Mutation(
        "what the other side has sent waits",
        "backlog.py",
        "        if other.begin[k + 1] > other.begin[k]:\n",
        "        if other.begin[k + 1] < other.begin[k]:\n",
    ),
    Mutation(
        "what has the time of the other side's last waits", "backlog.py", "ts[first] <= reached", "ts[first] < reached"
    ),
    Mutation(
        "the last ones wait, too", "backlog.py", "found[at] = ts[at] < ts[end - 1]", "found[at] = ts[at] <= ts[end - 1]"
    ),
    Mutation(
        "what its own side may still come before waits",
        "backlog.py",
        "ts[end - 1] >= frontier[k]",
        "ts[end - 1] >= FOREVER",
    ),
    Mutation("the first one waits, too", "backlog.py", "range(first + 1, end)", "range(first, end)"),
    Mutation(
        "none but those reached wait no longer",
        "backlog.py",
        "one_more = (behind < end) & (first",
        "one_more = (behind < start) & (first",
    ),
    Mutation(
        "what was reached at its very time waits on", "backlog.py", 'until[n], side="right")', 'until[n], side="left")'
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
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *_PLAIN, *_TESTS]
        # To compile the core anew takes longer than to run it uncompiled until a test fails.
        known = os.environ | {"PYTHONPATH": folder, "LSB_HYPOTHESIS": "no-shrinking", "NUMBA_DISABLE_JIT": "1"}
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
