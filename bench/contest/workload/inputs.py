"""Generates the contest's seeded data as columns, and writes it to Kafka once for all contenders.

A workload is a log of rows. A row consists of a thing, a side (0: speed, the left stream; 1: torque, the right stream)
and a time. In messages, the id of a record is its row number, so that each result identifies its rows. In the workload
of aligned rows, side 0 is the driver and the others are its columns. Its records are identified by their values (see
`value_of`), because an aligned row contains the values of the columns, but not their ids. The messages are in the
project's own form of JSON, except for one workload in Avro (see `bench.harness.other_layout`).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import Producer

from bench.contest.workload import nexmark
from bench.harness.other_layout import avro_encoder, document
from bench.harness.pipeline import FIRST_MS, PARTITIONS, make_sender, things_over_all_units
from broker.partitioner import partition_of
from simulator.generate import Plan, write
from simulator.recording import Selection, SortedRecording

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from broker.settings import KafkaSettings

    Ints = NDArray[np.int64]

QUANTITIES: Final = ("speed", "torque")
ROWS: Final = "rows"
"""The name of the workload of aligned rows."""
DRIVER_AND_COLUMNS: Final = ("load", "speed", "torque", "temperature")
"""The quantities of that workload: the driver's, then those of the columns."""
AVRO: Final = "avro"
"""The name of the alternating workload in Avro."""
SEED: Final = 7

_CHUNK: Final = 50_000
_SHARED: Final = Path(__file__).parents[2].parent / "shared" / "data" / "events.json"
_SPEED: Final = "actSpeed_C11"
_TORQUE: Final = "vaTorque_C11"
_OUT_OF_ORDER: Final = 0.1


@dataclass(frozen=True)
class Workload:
    """The rows of a contest's input, in log order.

    ``lateness_ms`` is how far a row may be behind the newest time of its stream. ``watermark_scope`` says whether a row
    advances the frontier of its own thing ("key") or of its whole partition ("partition"), which is needed if things
    come and go.
    """

    name: str
    about: str
    names: list[str]
    partition_of_thing: Ints
    thing: Ints
    side: Ints
    time_ms: Ints
    lateness_ms: int = 0
    watermark_scope: str = "key"
    partitions: int = PARTITIONS
    padding: int = 0
    """How many bytes of padding each message has."""
    quantities: tuple[str, ...] = QUANTITIES
    """The quantity of each side."""
    is_avro: bool = False
    """Whether the messages are in Avro, with the id of a schema."""

    def __len__(self) -> int:
        return len(self.thing)

    @property
    def has_columns(self) -> bool:
        """Whether the results are aligned rows instead of pairs."""
        return self.quantities != QUANTITIES

    @property
    def partition(self) -> Ints:
        """The partition of each row (int64, shape (n,))."""
        return self.partition_of_thing[self.thing]

    def messages(self, first: int, last: int, schema_id: int = 0) -> Iterator[tuple[int, dict[str, bytes]]]:
        """Yield the partition and message of each row from ``first`` up to but not including ``last``.

        ``schema_id`` is the id of the schema of messages in Avro.
        """
        rows, encode = slice(first, last), avro_encoder(schema_id)
        columns = (self.thing[rows], self.side[rows], self.time_ms[rows], self.partition[rows])
        for row, (thing, side, time_ms, place) in enumerate(zip(*(c.tolist() for c in columns), strict=True), first):
            if self.is_avro:
                value = encode(document(self.names[thing], QUANTITIES[side], time_ms, reading_of(row), f"{row}"))
            elif self.has_columns:
                value = record(self.names[thing], self.quantities[side], time_ms, value_of(row, side), row)
            else:
                value = message(self.names[thing], side, time_ms, row, self.padding)
            yield place, {"key": self.names[thing].encode(), "value": value}


def message(thing: str, side: int, time_ms: int, identity: int, padding: int = 0) -> bytes:
    """Return a record as JSON bytes, with ``padding`` extra bytes in a field that no contender reads."""
    more = f', "note": "{"x" * padding}"' if padding else ""
    return record(thing, QUANTITIES[side], time_ms, reading_of(identity), identity, more)


def reading_of(identity: int) -> float:
    """Return the value of a record, which does not matter to the join."""
    return identity * 7919 % 100_000 / 100


def record(thing: str, quantity: str, time_ms: int, value: float, identity: int, more: str = "") -> bytes:
    """Return a record as JSON bytes. ``more`` is the text of additional fields."""
    return (
        f'{{"thing": "{thing}", "quantity": "{quantity}", "phenomenonTime": {time_ms}, '
        f'"result": {value}, "id": "{identity}"{more}}}'
    ).encode()


def value_of(row: int, side: int) -> float:
    """Return the value that identifies a record of the workload of aligned rows."""
    return row + side / len(DRIVER_AND_COLUMNS)


def row_of(value: float, side: int) -> int | None:
    """Return the row that has this value, or None if no row of this side has it."""
    row = int(value)
    return row if value == value_of(row, side) else None


def produce(kafka: KafkaSettings, topic: str, workload: Workload, schema_id: int = 0) -> None:
    """Write all rows to a topic. ``schema_id`` is the id of the schema of messages in Avro."""
    producer = make_sender(kafka)
    for first in range(0, len(workload), _CHUNK):
        by_place: list[list[dict[str, bytes]]] = [[] for _ in range(workload.partitions)]
        for place, one in workload.messages(first, min(first + _CHUNK, len(workload)), schema_id):
            by_place[place].append(one)
        for place, messages in enumerate(by_place):
            _write(producer, topic, place, messages)


def produce_sides(kafka: KafkaSettings, topics: tuple[str, str], workload: Workload) -> None:
    """Write each side to a separate topic, with the event times as Kafka timestamps."""
    producer = make_sender(kafka)
    for first in range(0, len(workload), _CHUNK):
        rows = slice(first, first + _CHUNK)
        times_ms, sides = workload.time_ms[rows].tolist(), workload.side[rows].tolist()
        messages = workload.messages(first, min(first + _CHUNK, len(workload)))
        for (place, one), side, time_ms in zip(messages, sides, times_ms, strict=True):
            producer.produce(topics[side], one["value"], one["key"], place, timestamp=time_ms)
        producer.flush()


def _write(producer: Producer, topic: str, place: int, messages: list[dict[str, bytes]]) -> None:
    given: list[Any] = messages
    if producer.produce_batch(topic, given, partition=place) != len(messages) or producer.flush():
        raise RuntimeError(f"{topic} could not be written")


def alternating(name: str, records: int, seed: int, *, things: int = 8, ratio: int = 1, **more: Any) -> Workload:
    """Make rows that are a millisecond apart and cycle through the things.

    Each thing repeatedly sends one speed followed by ``ratio`` torques. A small workload uses fewer things, so that
    each still has enough rows.
    """
    del seed
    things = min(things, records // 2)
    at = np.arange(records)
    side = np.where(at // things % (ratio + 1) == 0, 0, 1)
    sides = "alternating speed and torque" if ratio == 1 else f"one speed for every {ratio:,} torques"
    about = f"{things:,} things in turn, a record every ms, {sides}"
    return _made(name, about, at % things, side, at, **more)


def bursts(name: str, records: int, seed: int) -> Workload:
    """Make bursts of 5,000 rows, a minute apart. At any time, a quarter of the things send no torque for minutes."""
    del seed
    at = np.arange(records * 5 // 4)
    thing, side = at % 8, at // 8 % 2
    silent = ((at // 15_000 + thing) % 4 == 0) & (side == 1)
    kept = np.flatnonzero(~silent)[:records]
    time_ms = at + at // 5_000 * 60_000
    about = "8 things; bursts of 5 s with a record every ms, a minute apart; at any time, two things send no torque"
    return _made(name, about, thing[kept], side[kept], time_ms[kept])


def gaps(name: str, records: int, seed: int) -> Workload:
    """Make streams with separate clocks and varying gaps: median 60 ms, one in a hundred above 0.6 s."""
    draw = np.random.default_rng(seed)
    streams = 16
    steps = np.ceil(draw.lognormal(np.log(60), 1.0, (streams, records // streams + 1)))
    time_ms = np.cumsum(steps, axis=1).astype(np.int64)
    stream = np.repeat(np.arange(streams), time_ms.shape[1])
    order = np.argsort(time_ms.ravel(), kind="stable")[:records]
    about = "8 things with 16 clocks; log-normal gaps (median 60 ms, mean 99 ms, one in a hundred above 0.6 s)"
    return _made(name, about, stream[order] // 2, stream[order] % 2, time_ms.ravel()[order])


def disorder(name: str, records: int, seed: int, *, late_ms: int = 500) -> Workload:
    """Make alternating rows, one in ten of which arrives up to ``late_ms`` positions late."""
    draw = np.random.default_rng(seed)
    at = np.arange(records)
    place = at + np.where(draw.random(records) < _OUT_OF_ORDER, draw.integers(1, late_ms, records), 0)
    at = at[np.argsort(place, kind="stable")]
    about = f"8 things in turn, a record every ms; one in ten is up to {late_ms / 1000:g} s late"
    return _made(name, about, at % 8, at // 8 % 2, at, lateness_ms=late_ms)


def aligned(name: str, records: int, seed: int) -> Workload:
    """Make rows that are a millisecond apart. Each of 8 things sends the driver and the columns in turn."""
    del seed
    at = np.arange(records)
    about = "8 things in turn, a record every ms; each sends the driver and its three columns in turn"
    sides = len(DRIVER_AND_COLUMNS)
    return _made(name, about, at % 8, at // 8 % sides, at, quantities=DRIVER_AND_COLUMNS)


def skew(name: str, records: int, seed: int) -> Workload:
    """Make rows of 1,000 things, a few of which send most of the records (Zipf's law)."""
    draw = np.random.default_rng(seed)
    share = 1 / np.arange(1, 1_001) ** 1.1
    thing = draw.choice(1_000, records, p=share / share.sum())
    about = "1,000 things, chosen by Zipf's law (exponent 1.1), with random sides; a record every ms"
    return _made(name, about, thing, draw.integers(0, 2, records), np.arange(records))


def recorded(name: str, records: int, seed: int) -> Workload:
    """Repeat a recording of a real machine, in parallel and in sequence. Without a recording, generate one."""
    named = os.environ.get("LSB_EVENTS")
    path = Path(named) if named else _SHARED
    with tempfile.TemporaryDirectory() as folder:
        what = "a recording of a real machine"
        if not path.is_file():
            what, path = "a recording simulated by simulator.generate", Path(folder) / "events.json"
            write(Plan(events=3_000, seed=seed, machines=1), path)
        rows = [
            (event["Timestamp"], side)
            for event in map(json.loads, SortedRecording(path, Selection()))
            for side, quantity in enumerate((_SPEED, _TORQUE))
            if quantity in event
        ]
    copies = 8
    time_ms, side = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    time_ms -= time_ms[0]
    rounds = -(-records // (copies * len(rows)))
    every_ms = np.add.outer(np.arange(rounds) * (time_ms[-1] + 1_000), time_ms).ravel()
    thing = np.tile(np.arange(copies), len(every_ms))
    about = f"{what} with {len(rows):,} records, in {copies} parallel copies, repeated {rounds} times"
    return _made(
        name,
        about,
        thing[:records],
        np.repeat(np.tile(side, rounds), copies)[:records],
        np.repeat(every_ms, copies)[:records],
    )


def like_nexmark(name: str, records: int, seed: int, *, streams: nexmark.Streams) -> Workload:
    """Make two streams that follow the rules of the Nexmark generator. Rows with the same id belong to one thing.

    The query is the neighbour join, not one of Nexmark's. The first stream has a single row for each id, which is
    therefore a neighbour of every row of the second stream with that id. The things come and go, so the watermark scope
    is the partition.
    """
    thing, side, time_ms, about = streams(records, np.random.default_rng(seed))
    return _made(name, about, thing, side, time_ms, watermark_scope="partition")


WORKLOADS: Final[dict[str, Callable[[str, int, int], Workload]]] = {
    "alternating": alternating,
    "rates 1:10": partial(alternating, ratio=10),
    "rates 1:1000": partial(alternating, ratio=1_000),
    "bursts and gaps": bursts,
    "varying gaps": gaps,
    "disorder": disorder,
    "1,000 keys": partial(alternating, things=1_000),
    "100,000 keys": partial(alternating, things=100_000),
    "skew": skew,
    "recorded": recorded,
    "like Nexmark Q20": partial(like_nexmark, streams=nexmark.auctions_and_bids),
    "like Nexmark Q8": partial(like_nexmark, streams=nexmark.persons_and_auctions),
}

CURVES: Final[dict[str, Callable[[int], Callable[[str, int, int], Workload]]]] = {
    "keys": lambda at: partial(alternating, things=at),
    "partitions": lambda at: partial(alternating, things=max(64, 2 * at), partitions=at),
    "bytes of a record": lambda at: partial(alternating, padding=max(0, at - _BYTES)),
    "ms of disorder": lambda at: partial(disorder, late_ms=at) if at else alternating,
    "cores": lambda _: alternating,
}
"""Maps each curve, named after the property that it varies, to a function that returns a workload's generator."""
_BYTES: Final = 105
"""The approximate size of a message without padding."""


def of_curve(curve: str, at: int) -> str:
    """Return the name of the workload in which the property that a curve varies has the value ``at``."""
    return f"{curve}: {at}"


def make(name: str, records: int, seed: int = SEED) -> Workload:
    """Make the workload ``name`` with ``records`` rows."""
    curve, _, at = name.partition(": ")
    if name == ROWS:
        return aligned(name, records, seed)
    if name == AVRO:
        return alternating(name, records, seed, is_avro=True)
    return (CURVES[curve](int(at)) if curve in CURVES else WORKLOADS[name])(name, records, seed)


def _made(name: str, about: str, thing: Ints, side: Ints, time_ms: Ints, **more: Any) -> Workload:
    """Assemble a workload. A few things are spread evenly over the partitions; many are partitioned by hash."""
    count, partitions = int(thing.max()) + 1, int(more.get("partitions", PARTITIONS))
    if count <= 2 * partitions:
        names, places = map(list, zip(*things_over_all_units("machine", count, partitions), strict=True))
    else:
        names = [f"machine-{number}" for number in range(count)]
        places = [partition_of(one.encode(), partitions) for one in names]
    place, of_thing, of_side, at_ms = (np.asarray(column, dtype=np.int64) for column in (places, thing, side, time_ms))
    return Workload(name, about, names, place, of_thing, of_side, at_ms + FIRST_MS, **more)
