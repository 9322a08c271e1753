"""Finds the effects of events in the results of a run: pauses, gaps, and latencies over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bench.contest.running.outputs import pairs_of
from bench.harness.pipeline import PARTITIONS
from bench.runners.failover.instances import Event
from broker.settings import KafkaSettings
from broker.wire.start_records import read_start
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import log_range, make_reader, read_to_end
from joiner.runtime.settings import JoinerSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

SHARES: Final = (50.0, 99.0, 99.9)
"""The percentiles of latencies and gaps."""

_BEFORE_MS: Final = 200
_KILLED_MS: Final = 1_000
"""The pause after a kill begins within this time. A later pause is due to the worker's return."""
_AT_ONCE: Final = 10_000
FIRST_MS, LAST_MS, STEP_MS = -1_000, 4_000, 50
"""The range of times around an event for which latencies are reported, and the length of a step."""


class UnitOutput(NamedTuple):
    """The output of a unit: when each result was appended, and when its later record was due.

    All times are in ms since the epoch, as int64 arrays of shape (n,) in the order of the log.
    """

    appended_ms: Ints
    due_ms: Ints


def read_output(settings: JoinerSettings, unit: int) -> UnitOutput:
    """Read everything that a unit has committed."""
    due_ns, appended_ms = read_results(settings.kafka, settings.topics.out, unit)
    return UnitOutput(appended_ms, due_ns // 1_000_000)


def read_results(kafka: KafkaSettings, topic: str, unit: int, last: int | None = None) -> tuple[Ints, Ints]:
    """Return when the later record of each committed result of a unit was due, in ns, and when it was appended, in ms.

    Both are int64 arrays of shape (n,), in the order of the log. If ``last`` is given, only that many offsets at the
    end are read.
    """
    appended_ms: list[int] = []
    due_ns: list[Ints] = [np.zeros(0, dtype=np.int64)]
    values: list[bytes] = []
    with closing(make_reader(kafka, "bench")) as reader:
        for message in _all(reader, topic, unit, last):
            value = message.value() or b""
            if read_start(value) is not None:
                continue
            appended_ms.append(int(message.timestamp()[1]))
            values.append(value)
            if len(values) >= _AT_ONCE:
                due_ns.append(_due_ns(values))
                values = []
    if values:
        due_ns.append(_due_ns(values))
    return np.concatenate(due_ns), np.array(appended_ms, dtype=np.int64)


def _due_ns(values: list[bytes]) -> Ints:
    """Return when the later record of each result was due. The records are stamped with their due times."""
    pairs = np.array([pair[:2] for pair in pairs_of(values)], dtype=np.int64)
    found: Ints = pairs.max(axis=1)
    return found


def _all(reader: Any, topic: str, unit: int, last: int | None = None) -> Any:
    low, high = log_range(reader, topic, unit)
    return read_to_end(reader, SystemClock(), topic, unit, low if last is None else max(low, high - last), high)


def pauses(events: Sequence[Event], outputs: Sequence[UnitOutput]) -> list[dict[str, Any]]:
    """Return a row per event and unit: its pause in ms, and how often it changed owner."""
    rows: list[dict[str, Any]] = []
    for unit, output in enumerate(outputs):
        for number, event in enumerate(events):
            first_ms = event.at_ms - _BEFORE_MS
            near = _around(output.appended_ms, first_ms, event.until_ms)
            pauses_ms = np.diff(near)
            last_ms = min(event.settled_ms, event.at_ms + _KILLED_MS) if "killed" in event.kind else event.settled_ms
            # One that begins later and outlasts the event is due to the next event.
            pauses_ms = pauses_ms[near[:-1] <= last_ms]
            row = {"event": number, "kind": event.kind, "instance": event.name, "unit": unit}
            rows.append(row | {"changes": event.changes(unit), "pause_ms": int(pauses_ms.max())})
    return rows


def longest(rows: Sequence[Mapping[str, Any]], kind: str) -> list[int]:
    """Return the longest pause of any unit, in ms, per event of a kind."""
    found: dict[int, int] = {}
    for row in rows:
        if row["kind"] == kind:
            found[row["event"]] = max(found.get(row["event"], 0), row["pause_ms"])
    return [*found.values()]


def gaps(
    events: Sequence[Event], outputs: Sequence[UnitOutput], rows: Sequence[dict[str, Any]]
) -> dict[str, list[float]]:
    """Return percentiles of the gaps between appends, in ms, of units that keep their owner.

    They are given by kind of event, from the event until the units are settled, and for the calm periods after that. A
    kind without gaps is left out.
    """
    has_changed = {(row["event"], row["unit"]) for row in rows if row["changes"]}
    found: dict[str, list[Ints]] = {}
    for unit, output in enumerate(outputs):
        times_ms = np.unique(output.appended_ms)
        for number, event in enumerate(events):
            calm = _between(times_ms, event.settled_ms, event.until_ms)
            found.setdefault("calm", []).append(np.diff(calm))
            if (number, unit) not in has_changed:
                busy = _between(times_ms, event.at_ms - _BEFORE_MS, event.settled_ms)
                found.setdefault(event.kind, []).append(np.diff(busy))
    of_kinds = {kind: np.concatenate(some) for kind, some in found.items()}
    return {kind: np.percentile(all_ms, SHARES).tolist() for kind, all_ms in of_kinds.items() if len(all_ms)}


def latencies(events: Sequence[Event], outputs: Sequence[UnitOutput]) -> dict[str, list[tuple[int, list[float]]]]:
    """Return percentiles of the latency in ms by kind of event and time since the event.

    The time is when the later record of a result was due, in ms, in steps of `STEP_MS`. All units and all events of a
    kind are combined.
    """
    found: dict[str, list[tuple[int, list[float]]]] = {}
    for kind in dict.fromkeys(event.kind for event in events):
        since_ms, latency_ms = [], []
        for output in outputs:
            order = np.argsort(output.due_ms, kind="stable")
            due_ms, took_ms = output.due_ms[order], (output.appended_ms - output.due_ms)[order]
            for event in events:
                if event.kind == kind:
                    last_ms = min(event.at_ms + LAST_MS, event.until_ms)
                    part = slice(*np.searchsorted(due_ms, (event.at_ms + FIRST_MS, last_ms)).tolist())
                    since_ms.append(due_ms[part] - event.at_ms)
                    latency_ms.append(took_ms[part])
        step, took = np.concatenate(since_ms) // STEP_MS, np.concatenate(latency_ms)
        found[kind] = [
            (int(one) * STEP_MS, np.percentile(took[step == one], SHARES).tolist()) for one in np.unique(step)
        ]
    return found


def _between(times_ms: Ints, first_ms: int, last_ms: int) -> Ints:
    return times_ms[(times_ms >= first_ms) & (times_ms <= last_ms)]


def _around(times_ms: Ints, first_ms: int, last_ms: int) -> Ints:
    """Return the times in a range, and one before and after it: a pause may begin before an event or outlast it."""
    first = max(0, int(np.searchsorted(times_ms, first_ms)) - 1)
    return times_ms[first : int(np.searchsorted(times_ms, last_ms, side="right")) + 1]


def of_units(settings: JoinerSettings) -> list[UnitOutput]:
    """Return the output of all units."""
    return [read_output(settings, unit) for unit in range(PARTITIONS)]
