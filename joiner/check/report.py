"""Renders the results of a check as text: tables, examples of differences, and the verdict on the last line."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from joiner.check.found.findings import DIFFERENCES
from joiner.check.verify.events import FATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joiner.check.found.findings import Findings
    from joiner.check.model.drive import Outcome


def render_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Render a table with padded columns. Integer columns are right-aligned, all others left-aligned."""
    texts = [list(header), *([f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(header))]
    numeric = [bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in texts
    ]
    return "\n".join(lines)


def render_findings(findings: Findings) -> str:
    """Render the report of ``verify``."""
    parts = [_compared(findings)]
    if findings.sides:
        header = ("join", "side", "accepted", "joined", "unmatched", "waiting", "late", "duplicate")
        parts.append(render_table(header, [[side[name] for name in header] for side in findings.sides]))
    if findings.events:
        parts.append(_events(findings))
    counts = ", ".join(f"{name} {number:,}" for name, number in findings.counts.items())
    parts.append(f"Input: {counts}.")
    parts += [f"Note: {note}" for note in findings.notes]
    for heading, examples in findings.examples.items():
        parts.append("\n".join([f"{heading}, for example:", *(f"  {example}" for example in examples)]))
    parts.append(_verdict(findings))
    return "\n\n".join(parts)


def _compared(findings: Findings) -> str:
    columns = ("expected", "found", *DIFFERENCES, "after")
    rows: list[list[object]] = []
    for (what, join), tally in sorted(findings.tallies.items()):
        numbers = asdict(tally)
        rows.append([what, join or "-", *(numbers[name] for name in columns)])
    numbers = asdict(findings.total)
    rows.append(["total", "", *(numbers[name] for name in columns)])
    return render_table(("compared", "join", *columns), rows)


def _events(findings: Findings) -> str:
    events = findings.events
    shown = [fate for fate in FATES if any(account[fate] for account in events["accounts"].values())]
    rows = [
        [name, account["selected"], *(account[fate] for fate in shown)] for name, account in events["accounts"].items()
    ]
    return (
        f"Events file: {events['rows']:,} rows, {events['quantities']:,} quantities, "
        f"{events['refused']:,} invalid parts; in Kafka, {events['redelivered']:,} records delivered again "
        f"and {events['not in the file']:,} not in the file.\n"
        + render_table(("quantities for", "in the file", *shown), rows)
    )


def _verdict(findings: Findings) -> str:
    total = findings.total
    if findings.is_right:
        return f"RIGHT: all {total.expected:,} expected outputs were found, each exactly once, and no others."
    wrong = ", ".join(f"{getattr(total, kind):,} {kind}" for kind in DIFFERENCES if getattr(total, kind))
    return f"WRONG: {wrong}."


def render_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Render the report on the built-in and random cases."""
    rows = [[o.name, o.records, o.certain, o.after_end, "differs" if o.differences else "equal"] for o in outcomes]
    parts = [render_table(("case", "records", "pairs certain", "after the end", "engine and oracle"), rows)]
    wrong = [outcome for outcome in outcomes if outcome.differences]
    parts += ["\n".join([f"{o.name}:", *(f"  {difference}" for difference in o.differences)]) for o in wrong]
    verdict = (
        f"WRONG: {len(wrong)} of {len(outcomes)} cases differ."
        if wrong
        else f"RIGHT: engine and oracle agree in all {len(outcomes)} cases."
    )
    return "\n\n".join([*parts, verdict])
