"""The contents of the page *Replicas*: texts and rows. Does not use NiceGUI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from control.facts.lookup.leads import Compared
from control.facts.overview import ReplicaOverview, Replicas
from control.page import content

if TYPE_CHECKING:
    from control.facts.reading import Facts

REPLICA_COLUMNS: Final = (
    "replica",
    "runs as",
    "units running",
    "lag",
    "records/s",
    "first to write",
    "share",
    "median lead",
    "p99 lead",
    "accepted",
    "complete",
)

_NOT_KNOWN: Final = "not known"
_DATE: Final = len("2026-01-01 ")

Row = dict[str, Any]


def replica_rows(found: Replicas) -> list[Row]:
    """Return a row for each replica."""
    return [_row(found, one) for one in found.replicas]


def _row(found: Replicas, one: ReplicaOverview) -> Row:
    is_read, partitions = found.compared is not None, 0 if found.merged is None else found.merged.partitions
    running = f"{one.running} of {found.units}" if one.has_run else "has never run"
    cells = (
        one.replica,
        one.application,
        _NOT_KNOWN if one.read_ms is None else running,
        _NOT_KNOWN if one.lag is None or one.read_ms is None else one.lag,
        round(one.rate),
        f"{one.first:,}" if is_read else "",
        "" if one.share is None else f"{one.share:.1%}",
        "" if one.lead is None else _ms(one.lead.median_ms),
        "" if one.lead is None else _ms(one.lead.p99_ms),
        "" if one.accepted is None else f"{one.accepted} of {partitions}",
        "" if one.complete is None else f"{one.complete} of {partitions}",
    )
    return dict(zip(REPLICA_COLUMNS, cells, strict=True))


def troubles(facts: Facts, now_ms: int) -> list[str]:
    """Return what an operator should look at. Each page has what concerns replica 0 above its contents.

    ``now_ms``: since the epoch.
    """
    return [
        f"Replica {number}: {text}"
        for number, own in sorted(facts.replicas.items())
        for text in content.troubles(own, now_ms)
    ]


def sentences(found: Replicas) -> list[str]:
    """Return what was compared, and what is known of `joiner merge`."""
    lines = [] if found.compared is None else _comparison(found, found.compared)
    return [*lines, _merging(found)]


def _comparison(found: Replicas, compared: Compared) -> list[str]:
    lines = []
    if compared.lead is None:
        lines.append("No result of the last minute before the newest one was written by several replicas.")
    else:
        begin, end = _seconds(compared.begin_ms), _seconds(compared.end_ms)
        if begin[:_DATE] == end[:_DATE]:
            end = end[_DATE:]
        lines.append(
            f"{compared.results:,} results were compared, first written from {begin} to {end} UTC. The first replica "
            f"led the next by {_ms(compared.lead.median_ms)} in the median, and by {_ms(compared.lead.p99_ms)} at the "
            "99th percentile."
        )
    if compared.same:
        lines.append(f"Written first by several replicas in the same millisecond: {compared.same:,}.")
    if compared.missing:
        lines.append(f"Written by only some of the replicas so far, and not compared: {compared.missing:,}.")
    if found.partitions < found.units:
        lines.append(f"Partitions read: {found.partitions} of {found.units}.")
    return lines


def _seconds(at_ms: int) -> str:
    return content.moment(at_ms).partition(".")[0]


def _ms(milliseconds: int) -> str:
    return f"{milliseconds:,} ms"


def _merging(found: Replicas) -> str:
    merger = found.merger
    if merger is None or merger.fault:
        return f"Whether joiner merge is running is {_NOT_KNOWN}{'' if merger is None else f': {merger.fault}'}."
    if not merger.members:
        return "joiner merge is not running."
    merging = [one.name for one in merger.members if one.partitions]
    waiting = [one.name for one in merger.members if not one.partitions]
    texts = [f"{', '.join(merging)} merges"] if merging else ["nobody merges yet"]
    if waiting:
        texts.append(f"{', '.join(waiting)} {'waits' if len(waiting) == 1 else 'wait'}")
    sentence = f"joiner merge: {'; '.join(texts)}."
    if found.merged is not None:
        sentence += f" Its last commit about the results: {_seconds(found.merged.at_ms)} UTC."
    return sentence
