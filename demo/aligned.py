"""Shows an aligned row as stored in Kafka, and its point in InfluxDB."""

from __future__ import annotations

from contextlib import closing
from typing import Final

import msgspec

from broker.times import parse_time
from broker.wire.records import decode_joined
from demo.results import read_results
from demo.task import Pipeline
from joiner.check.verify.points import Fields, PointKey, read_points

_TIMEOUT_S: Final = 30.0


def row_and_point(pipeline: Pipeline) -> list[str]:
    """Return the first row in which every column has a value, and its point, one line each.

    The list is empty if there is no such row. Raises KafkaException if the results cannot be read, and
    `joiner.check.found.evidence.EvidenceError` if InfluxDB cannot be read.
    """
    aligns, time_unit = {align.name for align in pipeline.joiner.align}, pipeline.joiner.events.time_unit
    if not aligns:
        return []
    with closing(read_results(pipeline.joiner)) as results:
        rows = ((result.value, _point_key(result.value, aligns, time_unit)) for result in results)
        row, key = next(((value, key) for value, key in rows if key is not None), (b"", None))
    if key is None:
        return []
    database = pipeline.db_connector
    points = read_points(database.influxdb, database.db_connector.measurement, [key.quantity], _TIMEOUT_S)
    return [f"Kafka     {row.decode()}", f"InfluxDB  {_shown(key, points[key]) if key in points else 'no point'}"]


def _point_key(value: bytes, aligns: set[str], time_unit: str) -> PointKey | None:
    """Return the key of a result's point, or None if the result is not a row of ``aligns`` or a value is missing."""
    try:
        row = decode_joined(value)
    except msgspec.DecodeError:
        return None
    if row.quantity not in aligns or row.values is None or None in row.values.values():
        return None
    time_ns = parse_time(bytes(row.phenomenonTime), time_unit)
    return PointKey(row.quantity, row.thing, row.quantity, "", row.tie, time_ns)


def _shown(key: PointKey, fields: Fields) -> str:
    values = ",".join(f"{name}={value}" for name, value in sorted(fields.items()))
    return f"thing={key.thing},quantity={key.quantity} {values} {key.time_ns}"
