"""``joiner status``: what the progress records say, beside the ends of the logs."""

from __future__ import annotations

from datetime import UTC, datetime

from broker.topics import topic_facts
from joiner.run.clients import log_range, make_admin, make_consumer
from joiner.run.progress import Progress
from joiner.run.settings import JoinerSettings
from joiner.run.state_log import read_progress


def show_status(settings: JoinerSettings) -> int:
    """Print a table of the application's units; returns the exit status: 1 where it has never run."""
    application = settings.application.name
    admin = make_admin(settings.kafka)
    if settings.state_topic not in topic_facts(admin, [settings.state_topic]):
        print(f"application {application!r} has never run: there is no topic {settings.state_topic}")
        return 1
    found = [
        read_progress(settings.kafka, application, settings.state_topic, unit)
        for unit in range(settings.topics.partitions)
    ]
    lags = _lags(settings, found)
    print(f"application {application}, {settings.topics.partitions} units, semantics {settings.fingerprint()[:12]}")
    rows: list[tuple[str, ...]] = [
        (
            "unit",
            "owner",
            "offsets",
            "lag",
            "pairs",
            "late",
            "dup.",
            "rejected",
            "held",
            "frontiers (lowest .. highest)",
        )
    ]
    rows += [_row(unit, progress, lags.get(unit, 0)) for unit, progress in enumerate(found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _lags(settings: JoinerSettings, found: list[Progress | None]) -> dict[int, int]:
    consumer = make_consumer(settings.kafka, settings.application.name)
    try:
        return {
            progress.unit: sum(
                log_range(consumer, topic, progress.unit)[1] - at for topic, at in progress.offsets.items()
            )
            for progress in found
            if progress is not None
        }
    finally:
        consumer.close()


def _row(unit: int, progress: Progress | None, lag: int) -> tuple[str, ...]:
    if progress is None:
        return (str(unit), "nobody yet", *[""] * 8)
    offsets = " ".join(f"{topic}@{at}" for topic, at in sorted(progress.offsets.items()))
    held = " ".join(f"{name}:{join.held_left}+{join.held_right}" for name, join in progress.joins.items())
    frontiers = " ".join(
        f"{name}:{_span(join.frontier_left)}|{_span(join.frontier_right)}" for name, join in progress.joins.items()
    )
    counts = [str(progress.counts.get(name, 0)) for name in ("pairs", "late", "duplicates", "rejected")]
    return (
        str(unit),
        progress.owner,
        offsets,
        str(lag),
        *counts,
        held,
        frontiers,
    )


def _span(frontier: tuple[int, int] | None) -> str:
    if frontier is None:
        return "-"
    low, high = (datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S") for ns in frontier)
    return low if low == high else f"{low}..{high}"
