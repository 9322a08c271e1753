"""Applies the function of an align to its rows. A failed row becomes a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from broker.kafka.replicas import shared_name
from broker.wire.records import encode_lines, reject, row_id
from joiner.functions import AlignedColumns, call_row_function, load_row_function
from joiner.runtime.task.emit import Reason, Things, evaluate, mean_time
from joiner.runtime.task.function_failures import Failures, add_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.alignment.buffer import AlignedRows
    from joiner.operators import AlignSettings
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.effects import Effects

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class ComputedRows(NamedTuple):
    """The n rows for which a function succeeded, with their things and results.

    ``kept``: their indices among the rows that were passed to the function, int64 of shape (n,).
    """

    rows: AlignedRows
    things: Things
    results: Floats
    kept: Ints


class RowFunctionCaller:
    """Calls the function of one align in one unit."""

    def __init__(self, settings: JoinerSettings, align: AlignSettings, unit: int, function: str) -> None:
        """``function``: the name of the function of ``align``."""
        self._align, self._unit, self._name = align.name, unit, function
        self._function = load_row_function(function)
        self._source = settings.application.shared_name
        # As in `Emitter`.
        self._topic = shared_name(settings.topics.out, settings.application.replica)
        self._time_unit = settings.events.time_unit

    def compute(
        self, found: AlignedRows, driver: Floats | None, things: Things, place: Callable[[int], str], effects: Effects
    ) -> ComputedRows:
        """Return the rows for which the function succeeds, with its results.

        Add the other rows to ``effects`` as dead letters. ``driver``: the values of the driver's records, None with a
        grid. ``place``: returns the last part of the id of the row at an index.
        """

        def call(which: Ints | None) -> Floats:
            rows = np.arange(len(found)) if which is None else which
            values = {name: values[rows] for name, values in found.values.items()}
            names = things._replace(number=things.number[rows]).each()
            of_driver = None if driver is None else driver[rows]
            return call_row_function(self._function, AlignedColumns(values, of_driver, found.ts_ns[rows], names))

        results, reasons = evaluate(call, len(found))
        if reasons:
            failed = sorted(reasons)
            for at in failed:
                shown = self._shown(found, driver, things, at)
                effects.rejected.append(
                    reject(
                        shown,
                        f"the function {self._name} of align {self._align!r}: {reasons[at].text}",
                        source=self._source,
                        topic=self._topic,
                        partition=self._unit,
                        identity=row_id(self._align, self._unit, place(at)),
                    )
                )
            first: Reason = reasons[failed[0]]
            add_up(effects.failed_pairs, {self._align: Failures.of(len(failed), *first, of_rows=True)})
        kept = np.setdiff1d(np.arange(len(found)), list(reasons))
        if reasons:
            found, things = _take(found, kept), things._replace(number=things.number[kept])
        return ComputedRows(found, things, results[kept], kept)

    def _shown(self, found: AlignedRows, driver: Floats | None, things: Things, at: int) -> bytes:
        """Return a row without its result, as JSON."""
        ts = int(found.ts_ns[at])
        content: dict[str, Any] = {
            "thing": things.names[things.number[at]],
            "quantity": self._align,
            "phenomenonTime": mean_time(ts, ts, self._time_unit),
        }
        if driver is not None:
            content["driver"] = float(driver[at])
        content["values"] = {
            name: None if found.is_missing[name][at] else float(values[at]) for name, values in found.values.items()
        }
        return encode_lines([content]).rstrip(b"\n")


def _take(found: AlignedRows, which: Ints) -> AlignedRows:
    """Return the rows at these indices."""
    return replace(
        found,
        seq=found.seq[which],
        key=found.key[which],
        ts_ns=found.ts_ns[which],
        values={name: values[which] for name, values in found.values.items()},
        is_missing={name: missing[which] for name, missing in found.is_missing.items()},
    )
