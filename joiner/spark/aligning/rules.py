"""Defines what is aligned: the new columns of the driver's rows, and how the rows of each frame become final."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from joiner.alignment.rules import ColumnRule
from joiner.spark.reordering import SideRules
from joiner.spark.rows import Side


@dataclass(frozen=True)
class AlignedColumn:
    """A column of the result: its table, as an index into the sides, and the position of the values in that table.

    ``name``: its name in the result. The tolerance of ``rule`` is in microseconds, or in the unit of the times if these
    are integers.
    """

    name: str
    side: int
    value: int
    rule: ColumnRule


@dataclass(frozen=True)
class AlignRules:
    """What to align. ``sides``: the driver, then the columns' tables.

    ``keys``: the types to which keys are converted for comparison. ``columns``: the new columns of the result.
    ``result``: the types of all columns of the result. For streams, ``lateness`` and ``has_watermark`` have one entry
    per side, as in `SideRules`.
    """

    sides: tuple[Side, ...]
    keys: pa.Schema
    columns: tuple[AlignedColumn, ...]
    buckets: int
    result: pa.Schema
    lateness: tuple[int | None, ...]
    has_watermark: tuple[bool, ...]

    def of_sides(self) -> SideRules:
        """Return how the rows of each side become final.

        Each row of the driver gets values of its own, so the order of the driver's rows does not matter.
        """
        keeps_order = tuple(at > 0 for at in range(len(self.sides)))
        return SideRules(self.sides, self.keys, self.lateness, self.has_watermark, keeps_order)

    def fingerprint(self) -> dict[str, Any]:
        """Return the options that must not change while a stored state is in use, as JSON values by name.

        The columns of the sides are identified by their positions.
        """
        named: dict[str, Any] = {"buckets": self.buckets}
        for at, side in enumerate(self.sides):
            named |= {f"{side.name} {what}": getattr(side, what) for what in ("by", "time", "order")}
            named |= {f"{side.name} {what}": getattr(self, what)[at] for what in ("lateness", "has_watermark")}
            named[f"{side.name} types"] = [str(kind) for kind in side.schema.types]
        for column in self.columns:
            rule = {field: value for field, value in asdict(column.rule).items() if field != "lateness_ns"}
            named[f"columns[{column.name!r}]"] = {"frame": column.side, "value": column.value} | rule
        plain: dict[str, Any] = json.loads(json.dumps(named))
        return plain

    def without_values(self, driver: pa.Table) -> pa.Table:
        """Return driver rows that have no neighbours, with nulls in all new columns, unless they are to be left out.

        ``driver``: rows without a key or a time.
        """
        if any(one.rule.on_missing == "drop" for one in self.columns):
            driver = driver.slice(0, 0)
        nulls = [pa.nulls(driver.num_rows, kind) for kind in self.result.types[len(driver.columns) :]]
        return pa.table(driver.columns + nulls, schema=self.result)
