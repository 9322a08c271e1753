"""Compares the points in InfluxDB with the results: there must be one point for each result, and no others.

A point has the measurement ``joined`` and the tags ``join``, ``thing`` and ``quantity``, as well as ``half=1`` if the
mean time was rounded down by half a nanosecond, and ``tie`` if the pair has one. Its fields are ``result``, or ``left``
and ``right``. The point of an aligned row has ``result`` and one field for each column that has a value. Points of
other applications with the same quantities are only counted. A point is not reported as missing if the connector wrote
a dead letter for its result, for example because a name in it cannot be a tag.
"""

from __future__ import annotations

import csv
import io
import json
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.domain.dialect import Dialect
from influxdb_client.rest import ApiException
from urllib3.exceptions import HTTPError

from broker.times import parse_time
from broker.wire.records import pair_id
from joiner.check.found.evidence import EvidenceError
from joiner.check.verify.pairs import shown_value
from joiner.check.verify.rows import altered_values
from joiner.functions import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from broker.settings import InfluxdbSettings
    from joiner.check.found.findings import Findings
    from joiner.check.model.expected_rows import RowKey
    from joiner.check.verify.comparison import Outputs
    from joiner.check.verify.judgement import UnitJudgement
    from joiner.check.verify.outputs import UnitResult
    from joiner.check.verify.pairs import ExpectedPairs
    from joiner.check.verify.rows import ExpectedRows

POINTS: Final = "points in InfluxDB"

_RELATIVE_ERROR: Final = 1e-12
_QUERY: Final = """from(bucket: {bucket})
  |> range(start: 1677-09-21T00:12:44Z, stop: 2262-04-11T23:47:16Z)
  |> filter(fn: (r) => r._measurement == {measurement} and r.quantity == {quantity})
  |> drop(columns: ["_start", "_stop"])"""


_TAGS: Final = ("join", "thing", "quantity", "half", "tie")
_DIALECT: Final = Dialect(annotations=[], header=True)  # type: ignore[no-untyped-call] # the library's


class PointKey(NamedTuple):
    """The tags and the time, which identify a point."""

    join: str
    thing: str
    quantity: str
    half: str
    tie: str
    time_ns: int


Fields = dict[str, float | str]
"""The values of a point, by field name."""


def read_points(
    settings: InfluxdbSettings, measurement: str, quantities: Sequence[str], timeout_s: float
) -> dict[PointKey, Fields]:
    """Return all points of ``measurement`` with one of ``quantities``.

    Raises `EvidenceError` if InfluxDB cannot be read.
    """
    points: dict[PointKey, Fields] = {}
    with InfluxDBClient(
        url=settings.url,
        token=settings.secret(),
        org=settings.org,
        timeout=int(timeout_s * 1000),
        ssl_ca_cert=str(settings.tls_ca_file) if settings.tls_ca_file else None,
    ) as client:
        for quantity in quantities:
            query = _QUERY.format(
                bucket=_flux(settings.bucket), measurement=_flux(measurement), quantity=_flux(quantity)
            )
            try:
                answer = client.query_api().query_raw(query, dialect=_DIALECT)
                with io.TextIOWrapper(answer, encoding="utf-8", newline="") as text:
                    for key, field, value in _rows(text):
                        points.setdefault(key, {})[field] = value
            except (ApiException, HTTPError, OSError) as error:
                reason = str(error).strip().splitlines() or [type(error).__name__]
                message = (
                    f"InfluxDB at {settings.url} cannot be read: {reason[0]}; "
                    "check that it is running, and that influxdb.bucket and the token are correct"
                )
                raise EvidenceError(message) from error
    return points


def _flux(text: str) -> str:
    """Return ``text`` as a Flux string literal. ``${`` is escaped, because it would start an expression."""
    return json.dumps(text, ensure_ascii=False).replace("${", "\\${")


def _rows(text: Iterable[str]) -> Iterator[tuple[PointKey, str, float | str]]:
    """Yield the key, field and value of each row. Raises `EvidenceError` if InfluxDB reports an error instead."""
    header: dict[str, int] | None = None
    for row in csv.reader(text):
        if not any(row):  # an empty line precedes a new header
            header = None
        elif header is None:
            header = {name: at for at, name in enumerate(row)}
        elif "error" in header:
            message = f"InfluxDB rejected the query: {row[header['error']]}"
            raise EvidenceError(message)
        else:
            join, thing, quantity, half, tie = (row[header[name]] if name in header else "" for name in _TAGS)
            field, value = row[header["_field"]], row[header["_value"]]
            time_ns = parse_time(row[header["_time"]], "ns")
            # All expected fields are numbers. Any string that is not a number is reported unchanged.
            yield PointKey(join, thing, quantity, half, tie, time_ns), field, _number(value)


class PointsCheck:
    """Compares points with each unit's pairs and rows. Implements `joiner.check.verify.outputs.FurtherCheck`."""

    def __init__(self, points: dict[PointKey, Fields], joins: Collection[str]) -> None:
        self._points, self._joins = points, joins
        self._missing: dict[str, tuple[str, str]] = {}
        self._compared: list[tuple[str, str, str]] = []
        self._expected: dict[str, int] = {}
        self._found: dict[str, int] = {}
        self._after: dict[str, int] = {}

    def add_unit(self, result: UnitResult) -> None:
        """Compare the unit's pairs and rows with their points, and remove those points from the ones read."""
        for name, want in result.pairs.items():
            for at in (~want.failed).nonzero()[0].tolist():
                self._compare_pair(name, want, at, result.judgement)
        for name, rows in result.rows.items():
            for identity, seq in rows.ids.items():
                if seq not in rows.failed:
                    self._compare_row(name, rows, identity, seq)

    def _compare_row(self, name: str, want: ExpectedRows, identity: str, seq: RowKey) -> None:
        row = want.rows.rows[seq]
        key = PointKey(name, want.things[seq], name, "", str(row.ordinal) if row.ordinal else "", row.ts)
        fields = self._take(name, identity, key, is_due=seq in want.due)
        if fields is None:
            return
        values: dict[str, Any] = dict.fromkeys(want.align.columns) | fields
        result = values.pop("result", None)
        if wrong := want.altered_result(seq, result, values) + altered_values(want.align, row, values):
            self._compared.append((name, identity, f"{_shown(key)}: {'; '.join(wrong)}"))

    def _compare_pair(self, name: str, want: ExpectedPairs, at: int, judgement: UnitJudgement) -> None:
        pairs, is_due = want.pairs, bool(want.due[at])
        left, right = (judgement.position(int(seq[at])) for seq in (pairs.left_seq, pairs.right_seq))
        identity = pair_id(name, judgement.unit, left, right)
        total_ns = int(pairs.left_ts[at]) + int(pairs.right_ts[at])
        tie = f"{pairs.left_ordinal[at]}-{pairs.right_ordinal[at]}"
        key = PointKey(
            name,
            want.left[at].thing,
            want.join.output,
            "1" if total_ns % 2 else "",
            "" if tie == "0-0" else tie,
            total_ns // 2,
        )
        fields = self._take(name, identity, key, is_due=is_due)
        if fields is None:
            return
        value = shown_value(want.values[at])
        wanted: Fields = {**value} if isinstance(value, dict) else {"result": value}
        wrong = _altered(fields, wanted, exact=want.join.function in BUILT_IN)
        if wrong:
            self._compared.append((name, identity, f"{_shown(key)}: {'; '.join(wrong)}"))

    def _take(self, name: str, identity: str, key: PointKey, *, is_due: bool) -> Fields | None:
        """Count a result's point, and remove it from the points that were read.

        Return its fields, or None if there is no such point.
        """
        fields = self._points.pop(key, None)
        counts = self._expected if is_due else self._after
        counts[name] = counts.get(name, 0) + (is_due or fields is not None)
        if fields is None and is_due:
            self._missing[identity] = (name, _shown(key))
        elif is_due:
            self._found[name] = self._found.get(name, 0) + 1
        return fields

    def conclude(self, outputs: Outputs, findings: Findings) -> None:
        """Report missing, altered and unexpected points. A point that became a dead letter is not missing."""
        refused = {dead_letter.id for dead_letter in outputs.foreign_rejected} & self._missing.keys()
        for name in {*self._expected, *self._after}:
            tally = findings.tally(POINTS, name)
            tally.expected, tally.found = self._expected.get(name, 0), self._found.get(name, 0)
            tally.after = self._after.get(name, 0)
        for identity in refused:
            name, _ = self._missing.pop(identity)
            findings.tally(POINTS, name).expected -= 1
            findings.count("points refused by the database (dead letters)")
        for identity, (name, place) in self._missing.items():
            findings.differ("missing", POINTS, name, f"{identity}: {place}")
        for name, identity, text in self._compared:
            findings.differ("altered", POINTS, name, f"{identity}: {text}")
        for key, fields in self._points.items():
            if key.join and key.join not in self._joins:
                findings.count("points of other applications")
                continue
            hint = "" if key.join else " (no tag join, so an older release wrote it: see docs/db_connector.md)"
            findings.differ("unexpected", POINTS, key.join, f"{_shown(key)}: {fields}{hint}")


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def _altered(found: Fields, wanted: Fields, *, exact: bool) -> list[str]:
    wrong = []
    for name in sorted(found.keys() | wanted.keys()):
        have, want = found.get(name), wanted.get(name)
        close = (
            not exact
            and isinstance(have, float)
            and isinstance(want, float)
            and math.isclose(have, want, rel_tol=_RELATIVE_ERROR)
        )
        if have != want and not close:
            wrong.append(f"{name}: {have!r}, expected {want!r}")
    return wrong


def _shown(key: PointKey) -> str:
    tags = [f"{name}={value}" for name, value in (("join", key.join), ("half", key.half), ("tie", key.tie)) if value]
    moment = np.datetime64(key.time_ns, "ns")
    return ", ".join([f"thing={key.thing}", f"quantity={key.quantity}", *tags, f"time {moment}Z ({key.time_ns} ns)"])
