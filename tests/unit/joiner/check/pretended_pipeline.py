"""A simulated pipeline for testing the tester: inputs of every kind, and the outputs of a correct joiner.

The outputs come from the nested-loop oracle, record by record and without the tester's own code, so that the two agree
only if both are correct.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from broker.partitioner import partition_of
from broker.times import mean_text
from broker.wire import records as wire
from joiner.check.found.evidence import Message, RecordedEvidence
from joiner.check.model import aligned, oracle
from joiner.runtime.model import FORMAT_VERSION, Checkpoint
from joiner.runtime.settings import JoinerSettings

BASE_MS = 1_554_096_460_000
PARTITIONS = 3
APPLICATION = "shop"
JOINS = (
    {
        "name": "power",
        "left": "speed",
        "right": "torque",
        "function": "joiner.functions:spindle_power",
        "output": "mechPower",
    },
    {
        "name": "gap",
        "left": "command",
        "right": "speed",
        "function": "product",
        "output": "speedGap",
        "tolerance": "800ms",
        "lateness": "1s",
        "emit_unmatched": "both",
    },
    {
        "name": "keep",
        "left": "torque",
        "right": "command",
        "function": "both",
        "output": "kept",
        "lateness": ["2s", "0s"],
    },
)


def make_settings(**more: Any) -> JoinerSettings:
    """Return the settings of the simulated application."""
    given = {
        "topics": {"partitions": PARTITIONS},
        "application": {"name": APPLICATION},
        "join": list(JOINS),
        **more,
    }
    return JoinerSettings.model_validate(given)


@dataclass
class Pipeline:
    """The data of a run: input and output logs, events file and points. `run` writes the outputs and the points."""

    settings: JoinerSettings
    inputs: list[Message] = field(default_factory=list)
    outputs: list[Message] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    points: dict[tuple[str, str, str, str, str, int], dict[str, float | str]] = field(default_factory=dict)
    ends: Counter[tuple[str, int]] = field(default_factory=Counter)

    def write(self, topic: str, partition: int, key: str | None, value: bytes, time_ms: int = BASE_MS) -> Message:
        """Append a record to a log and return it. Sometimes leave an offset gap after it, like a transaction marker."""
        offset = self.ends[topic, partition]
        self.ends[topic, partition] += 2 if offset % 7 == 3 else 1
        key_bytes = None if key is None else key.encode()
        return Message(topic, partition, offset, time_ms, key_bytes, value)

    def put_in(self, value: bytes, partition: int, key: str | None = None) -> None:
        """Append a message to the data topic."""
        self.inputs.append(self.write(self.settings.topics.data, partition, key, value, BASE_MS + 60_000))

    def put_event(self, event: dict[str, Any], *, lose: str = "") -> None:
        """Append a row to the events file and, as the connector would, its quantities to the data topic."""
        self.rows.append(json.dumps(event).encode())
        for quantity, result in event.items():
            if quantity not in {"Thing", "Timestamp", "id", lose}:
                record = wire.Record(event["Thing"], quantity, event["Timestamp"], float(result), event["id"])
                unit = partition_of(record.thing.encode(), PARTITIONS)
                self.put_in(wire.encode(record), unit, record.thing)

    def put_out(self, topic: str, partition: int, key: str, message: Any) -> None:
        """Append a message to an output topic."""
        self.outputs.append(self.write(topic, partition, key, wire.encode(message)))

    def run(self) -> None:
        """Write all outputs that a correct joiner would have written by now, and the points of the pairs."""
        self.outputs.clear()
        for unit in range(PARTITIONS):
            _run_unit(self, unit)

    def evidence(self) -> RecordedEvidence:
        """Return the data that the tester reads."""
        topics = self.settings.topics
        checkpoint = {unit: make_checkpoint(self, unit) for unit in range(PARTITIONS)}
        return RecordedEvidence(checkpoint, [*self.inputs, *self.outputs], topics)


def make_checkpoint(pipeline: Pipeline, unit: int, stop: int | None = None) -> Checkpoint:
    """Return the checkpoint of a unit that has consumed all messages, or all those before offset ``stop``."""
    settings = pipeline.settings
    topic = settings.topics.data
    end = pipeline.ends[topic, unit] if stop is None else stop
    return Checkpoint(
        format=FORMAT_VERSION,
        application=settings.application.name,
        unit=unit,
        run="run",
        instance="here",
        site="process",
        offsets={topic: end},
        start={topic: 0},
        topics={},
        partitions=PARTITIONS,
        fingerprint=settings.fingerprint(),
        semantics=settings.semantics(),
        counts={},
        joins={},
    )


def _run_unit(pipeline: Pipeline, unit: int) -> None:
    settings, topic = pipeline.settings, pipeline.settings.topics.data
    wanted = {stream.quantity for operator in settings.operators for stream in operator.streams.values()}
    usable: list[tuple[int, int, wire.Record | wire.Watermark]] = []
    for message in pipeline.inputs:
        if message.partition != unit:
            continue
        reason = ""
        try:
            entry, ts = wire.decode_data(message.value, settings.events.time_unit)
        except wire.Unreadable as error:
            reason = str(error)
        else:
            if entry.quantity not in wanted | ({None} if isinstance(entry, wire.Watermark) else set()):
                continue
            if ts > message.time_ms * 10**6 + settings.application.max_future_skew:
                reason = "from the future"
            elif entry.thing is not None and partition_of(entry.thing.encode(), PARTITIONS) != unit:
                reason = "wrong partition"
        if reason:
            dead_letter = wire.reject(
                message.value, reason, source=APPLICATION, topic=topic, partition=unit, offset=message.offset
            )
            pipeline.put_out(settings.topics.rejected, unit, "", dead_letter)
        else:
            usable.append((message.offset, ts, entry))
    _run_operators(pipeline, unit, usable)


def _run_operators(pipeline: Pipeline, unit: int, usable: list[tuple[int, int, Any]]) -> None:
    for join in pipeline.settings.join:
        _run_join(pipeline, unit, join, usable)
    for align in pipeline.settings.align:
        _run_align(pipeline, unit, align, usable)


def _run_join(pipeline: Pipeline, unit: int, join: Any, usable: list[tuple[int, int, Any]]) -> None:
    records = {offset: entry for offset, _, entry in usable}
    streams = [_entries(usable, side.quantity) for side in (join.left, join.right)]
    options = {"tolerance_ns": join.tolerance, "lateness_ns": join.lateness}
    answer = oracle.join(*streams, **options)
    for name, side in (("left", answer.left), ("right", answer.right)):
        _emit_late(pipeline, unit, (join.name, name), records, side)
    _emit_unmatched(pipeline, unit, join, records, oracle.unmatched(*streams, **options))
    times = [{rec.seq: rec.ts for rec in side.accepted} for side in (answer.left, answer.right)]
    ordinals = [oracle.ordinals(side.accepted) for side in (answer.left, answer.right)]
    for left_seq, right_seq in sorted(answer.pairs):
        _put_pair(pipeline, unit, join, (left_seq, right_seq), records, times, ordinals)


def _entries(usable: list[tuple[int, int, Any]], quantity: str | None) -> list[oracle.Rec | oracle.Watermark]:
    """Return the records and watermarks of a quantity."""
    things = sorted({entry.thing for _, _, entry in usable if entry.thing is not None})
    stream: list[oracle.Rec | oracle.Watermark] = []
    for offset, ts, entry in usable:
        key = oracle.ALL_KEYS if entry.thing is None else things.index(entry.thing)
        if isinstance(entry, wire.Watermark) and entry.quantity in {None, quantity}:
            stream.append(oracle.Watermark(key, ts, offset))
        elif isinstance(entry, wire.Record) and entry.quantity == quantity:
            stream.append(oracle.Rec(key, ts, offset, entry.id))
    return stream


def _emit_late(
    pipeline: Pipeline, unit: int, where: tuple[str, str], records: dict[int, Any], stream: oracle.Stream
) -> None:
    """Write the late records of a side. ``where``: the name of the operator, and the side."""
    settings, (name, side) = pipeline.settings, where
    for late in stream.late:
        record, identity = records[late.seq], f"{name}:{unit}:{side}:{late.seq}"
        message = wire.Late(identity, APPLICATION, name, side, settings.topics.data, unit, late.seq, record)
        pipeline.put_out(settings.topics.late, unit, record.thing, message)


def _run_align(pipeline: Pipeline, unit: int, align: Any, usable: list[tuple[int, int, Any]]) -> None:
    records = {offset: entry for offset, _, entry in usable}
    entries = {name: _entries(usable, stream.quantity) for name, stream in align.streams.items()}
    streams = {
        name: oracle.Stream(of, align.lateness_by_stream[name], watermark_scope=align.watermark_scope)
        for name, of in entries.items()
    }
    for name, stream in streams.items():
        _emit_late(pipeline, unit, (align.name, name), records, stream)
    values = {offset: record.result for offset, record in records.items() if isinstance(record, wire.Record)}
    columns = [
        aligned.Column(
            entries[name], values, column.rule, column.tolerance, column.period, column.on_missing, column.lateness
        )
        for name, column in align.columns.items()
    ]
    if align.grid is not None:
        _put_grid_rows(pipeline, unit, align, columns, sorted({entry.thing for _, _, entry in usable if entry.thing}))
        return
    options = {"lateness_ns": align.lateness, "watermark_scope": align.watermark_scope}
    rows, _ = aligned.align(entries["driver"], columns, **options)
    times = {rec.seq: rec.ts for rec in streams["driver"].accepted}
    ordinals = oracle.ordinals(streams["driver"].accepted)
    for seq, row in sorted(rows.items()):
        driver, tie = records[seq], str(ordinals[seq]) if ordinals[seq] else ""
        if not _has_result(pipeline, unit, align, row, f"{align.name}:{unit}:{seq}"):
            continue
        time = msgspec.Raw(mean_text(times[seq], times[seq], "ms").encode())
        cells = dict(zip(align.columns, row, strict=True))
        result = driver.result if align.function is None else _total(row)
        message = wire.AlignedRow(driver.thing, align.name, time, result, f"{align.name}:{unit}:{seq}", cells, tie)
        pipeline.put_out(pipeline.settings.topics.out, unit, driver.thing, message)
        key = (align.name, driver.thing, align.name, "", tie, times[seq])
        fields = {name: value for name, value in cells.items() if value is not None}
        pipeline.points[key] = {"result": result, **fields}


def _total(row: aligned.Row) -> float:
    """Return the result of the function ``of_row``: the sum of the values, or NaN if one is missing."""
    return sum(float("nan") if value is None else value for value in row)


def _has_result(pipeline: Pipeline, unit: int, align: Any, row: aligned.Row, identity: str) -> bool:
    """Return whether a row has a result. If its function fails, write the dead letter."""
    if align.function is None or None not in row:
        return True
    dead_letter = wire.reject(b"", "not finite", source=APPLICATION, topic="", identity=identity)
    pipeline.put_out(pipeline.settings.topics.rejected, unit, "", dead_letter)
    return False


def _put_grid_rows(pipeline: Pipeline, unit: int, align: Any, columns: list[aligned.Column], things: list[str]) -> None:
    grid = aligned.Grid(align.grid.every, align.grid.origin, align.grid.max_gap_ns)
    for (key, tick), row in sorted(aligned.align_grid(grid, columns, watermark_scope=align.watermark_scope).items()):
        ts, thing, cells = (
            grid.origin_ns + tick * grid.every_ns,
            things[key],
            dict(zip(align.columns, row, strict=True)),
        )
        fields = {name: value for name, value in cells.items() if value is not None}
        identity = f"{align.name}:{unit}:{thing}:{tick}"
        if not _has_result(pipeline, unit, align, row, identity):
            continue
        result = float(len(fields)) if align.result is None else fields[align.result]
        result = result if align.function is None else _total(row)
        time = msgspec.Raw(mean_text(ts, ts, "ms").encode())
        message = wire.AlignedRow(thing, align.name, time, result, identity, cells)
        pipeline.put_out(pipeline.settings.topics.out, unit, thing, message)
        pipeline.points[align.name, thing, align.name, "", "", ts] = {"result": result, **fields}


def _emit_unmatched(
    pipeline: Pipeline, unit: int, join: Any, records: dict[int, Any], unmatched: tuple[set[int], set[int]]
) -> None:
    settings = pipeline.settings
    for number, name in enumerate(("left", "right")):
        if join.emit_unmatched not in {name, "both"}:
            continue
        for offset in sorted(unmatched[number]):
            identity = f"{join.name}:{unit}:{offset}:" if name == "left" else f"{join.name}:{unit}::{offset}"
            record, where = records[offset], (settings.topics.data, unit, offset)
            value = wire.Unmatched(identity, APPLICATION, join.name, name, *where, record)
            pipeline.put_out(settings.topics.unmatched, unit, record.thing, value)


def _put_pair(
    pipeline: Pipeline,
    unit: int,
    join: Any,
    seqs: tuple[int, int],
    records: dict[int, Any],
    times: list[dict[int, int]],
    ordinals: list[dict[int, int]],
) -> None:
    settings, (left, right) = pipeline.settings, (records[seqs[0]], records[seqs[1]])
    identity = f"{join.name}:{unit}:{seqs[0]}:{seqs[1]}"
    first, second = times[0][seqs[0]], times[1][seqs[1]]
    tie = f"{ordinals[0][seqs[0]]}-{ordinals[1][seqs[1]]}"
    result: float | dict[str, float]
    if join.function == "both":
        result = {"left": left.result, "right": right.result}
    elif join.function == "product":
        result = left.result * right.result
    else:
        result = left.result * right.result * (3.141592653589793 / 30)
    if result == float("inf"):
        dead_letter = wire.reject(b"", "not finite", source=APPLICATION, topic="", identity=identity)
        pipeline.put_out(settings.topics.rejected, unit, left.thing, dead_letter)
        return
    message = wire.Joined(
        left.thing,
        join.output,
        msgspec.Raw(mean_text(first, second, "ms").encode()),
        result,
        identity,
        wire.Side(left.quantity, left.phenomenonTime, left.result, left.id),
        wire.Side(right.quantity, right.phenomenonTime, right.result, right.id),
        "" if tie == "0-0" else tie,
    )
    pipeline.put_out(settings.topics.out, unit, left.thing, message)
    half = "1" if (first + second) % 2 else ""
    key = (join.name, left.thing, join.output, half, message.tie, (first + second) // 2)
    pipeline.points[key] = dict(result) if isinstance(result, dict) else {"result": result}


def make_pipeline(seed: int, rows: int = 120, settings: JoinerSettings | None = None) -> Pipeline:
    """Return a run over in-order, out-of-order, redelivered, simultaneous and late events, watermarks and garbage."""
    rng, pipeline = random.Random(seed), Pipeline(settings or make_settings())
    clock = dict.fromkeys((f"R{number}" for number in range(5)), 0)
    sent: list[dict[str, Any]] = []
    for number in range(rows):
        thing = rng.choice(list(clock))
        clock[thing] += rng.choice((0, 1, 500, 1000, 2500))
        event: dict[str, Any] = {"Thing": thing, "Timestamp": BASE_MS + clock[thing], "id": f"e{number}"}
        if rng.random() < 0.1:
            event["Timestamp"] -= 1500
        for quantity in rng.sample(("speed", "torque", "command", "load"), rng.randint(1, 3)):
            event[quantity] = round(rng.uniform(-300, 300), 3)
        pipeline.put_event(event)
        sent.append(event)
        if rng.random() < 0.08:
            pipeline.put_event(rng.choice(sent[-3:]))
            pipeline.rows.pop()
    _put_oddities(pipeline, clock)
    pipeline.run()
    return pipeline


def _put_oddities(pipeline: Pipeline, clock: dict[str, int]) -> None:
    """Append watermarks, and messages that are rejected, that no join selects, or that make a joining function fail."""
    here = partition_of(b"R0", PARTITIONS)
    last_ms = BASE_MS + clock["R0"]
    huge = {"Thing": "R0", "Timestamp": last_ms + 4000, "id": "huge", "speed": 1e200, "command": 1e200}
    pipeline.put_event(huge)
    pipeline.put_event({"Thing": "R0", "Timestamp": BASE_MS + 10**10, "id": "future", "speed": 1.0})
    for value in (b"{", b"", b'{"thing":"R0","quantity":"speed","phenomenonTime":1,"result":null,"id":"x"}'):
        pipeline.put_in(value, here)
    wrong = wire.Record("R0", "speed", BASE_MS + 10**6, 1.0, "elsewhere")
    pipeline.put_in(wire.encode(wrong), (here + 1) % PARTITIONS, "R0")
    pipeline.put_in(wire.encode(wire.Watermark(last_ms + 4001, "speed", "R0")), here, "R0")
    pipeline.put_in(wire.encode(wire.Watermark(BASE_MS + 10**10, "speed")), here)
    pipeline.put_in(wire.encode(wire.Watermark(BASE_MS, "load")), here)
    pipeline.put_in(wire.encode(wire.Watermark(BASE_MS + min(clock.values()))), here)
    iso = wire.Record("R0", "torque", "2019-04-01T08:27:40.5+02:00", 2.0, "iso")
    pipeline.put_in(wire.encode(iso), here, "R0")
    exact = wire.Record("R0", "torque", cast("int", msgspec.Raw(f"{last_ms + 9000}.000001".encode())), 2.5, "dec")
    pipeline.put_in(wire.encode(exact), here, "R0")
