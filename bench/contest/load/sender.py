"""Sends records at a given rate, each stamped with the time when it was *due*.

The load is open-loop: when a record is due depends only on the rate and on when that rate was set, never on how fast
earlier records were sent or processed. If the sender or the broker is held up, the records due in the meantime are sent
late but keep their due times, so the delay counts towards the latency of each of them and no record is left out. (A
stamp taken when a record is sent would hide the delay; this is known as "coordinated omission".)

``python -m bench.contest.load.sender BOOTSTRAP TOPIC [BATCH_MS]`` reads rates from standard input, one per line; 0
stops. After each rate it writes a JSON line: how many records it sent, the greatest delay of any of them, and how far
it is behind schedule. ``BATCH_MS`` is how long the client may wait for more records to send together. A longer time
costs less CPU here and in the broker.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import Producer
from numba import njit

from bench.contest.workload.inputs import QUANTITIES, message
from bench.harness.pipeline import FIRST_MS, PARTITIONS, things_over_all_units
from broker.kafka.native.library import Unavailable
from broker.kafka.native.writer import NativeWriter
from broker.settings import KafkaSettings
from broker.wire.columns import StringColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

THINGS: Final = 8
_TICKS: Final = 5
"""How often it is looked what is due, per batch."""
_AT_ONCE: Final = 20_000
"""Maximum number of records sent between two readings of the clock."""
_TIME_DIGITS: Final = 13
_ID_DIGITS: Final = 19
_BATCH_MS: Final = 5


class Schedule:
    """The schedule of records: ``rate`` records per second are due from ``began_ns`` on, at equal intervals."""

    def __init__(self, rate: float, began_ns: int) -> None:
        self.rate, self.began_ns = rate, began_ns

    def due_by(self, now_ns: int) -> int:
        """Return how many records are due by ``now_ns``. The first one is due one interval after ``began_ns``."""
        return max(0, int((now_ns - self.began_ns) * self.rate // 1_000_000_000))

    def due_ns(self, first: int, last: int) -> Ints:
        """Return when the records from ``first`` up to but not including ``last`` are due (int64, in ns)."""
        place = np.arange(first + 1, last + 1, dtype=np.float64)
        return self.began_ns + np.rint(place * (1e9 / self.rate)).astype(np.int64)

    def behind_ms(self, sent: int, now_ns: int) -> float:
        """Return how long the oldest unsent record has been overdue, in ms; 0 if none is due."""
        return max(0.0, (now_ns - int(self.due_ns(sent, sent + 1)[0])) / 1e6)

    def count_between(self, first_ns: int, last_ns: int) -> int:
        """Return how many records are due after ``first_ns`` and up to ``last_ns``."""
        return self.due_by(last_ns) - self.due_by(first_ns)


def send(bootstrap: str, topic: str, batch_ms: str = str(_BATCH_MS)) -> None:
    """Send records at the rate last read from standard input.

    ``topic`` is one topic, or two topics separated by a comma, one for each side. ``batch_ms``: see the module.
    """
    tick_s = float(batch_ms) / 1000 / _TICKS
    producer = Producer(KafkaSettings(bootstrap_servers=bootstrap).producer_config(linger_ms=float(batch_ms)))
    write = writer_of(producer, topic.split(","))
    schedule, sent, number, late_ns = Schedule(0.0, 0), 0, 0, 0
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            if schedule.rate:
                report = {"sent": sent, "late_ms": late_ns / 1e6, "behind_ms": schedule.behind_ms(sent, time.time_ns())}
                print(json.dumps(report), flush=True)
            rate = float(sys.stdin.readline() or 0)
            if not rate:
                break
            schedule, sent, late_ns = Schedule(rate, time.time_ns()), 0, 0
            print(json.dumps({"began_ns": schedule.began_ns}), flush=True)
        count = min(schedule.due_by(time.time_ns()) - sent, _AT_ONCE) if schedule.rate else 0
        if count:
            due_ns = schedule.due_ns(sent, sent + count)
            write(number, due_ns)
            late_ns = max(late_ns, time.time_ns() - int(due_ns[0]))
            sent, number = sent + count, number + count
        producer.poll(0)
        if count < _AT_ONCE:
            time.sleep(tick_s)
    producer.flush()


def writer_of(producer: Producer, topics: list[str]) -> Callable[[int, Ints], None]:
    """Return a function that sends consecutive records, given the first record's number and the ids of all records."""
    records = Records()
    if len(topics) == 1:
        try:
            native = NativeWriter(producer)
        except Unavailable:
            pass
        else:
            return lambda number, ids: records.write(native, topics[0], number, ids)

    def write(number: int, ids: Ints) -> None:
        for at, one in enumerate(ids.tolist(), number):
            (name, place), side, time_ms = records.things[at % THINGS], at // THINGS % 2, FIRST_MS + at
            given = (topics[side % len(topics)], message(name, side, time_ms, one), name.encode(), place)
            while True:
                try:
                    producer.produce(*given, timestamp=time_ms)
                    break
                except BufferError:
                    producer.poll(0.01)

    return write


class Records:
    """Generates the records of the alternating workload as columns, without a Python object for each record.

    There is a template for each thing and side. A record is a copy of its template, into which the time, value and id
    are written, each with a fixed number of digits.
    """

    def __init__(self) -> None:
        self.things = things_over_all_units("machine", THINGS)
        texts, places = [], []
        for side in range(len(QUANTITIES)):
            for name, _ in self.things:
                head = f'{{"thing": "{name}", "quantity": "{QUANTITIES[side]}", "phenomenonTime": '
                texts.append(f'{head}{"0" * _TIME_DIGITS}, "result": 100.00, "id": "{"0" * _ID_DIGITS}"}}'.encode())
                places.append(len(head))
        self._width = max(map(len, texts))
        self._template = np.zeros((len(texts), self._width), dtype=np.uint8)
        for row, text in enumerate(texts):
            self._template[row, : len(text)] = np.frombuffer(text, dtype=np.uint8)
        self._length = np.array(list(map(len, texts)), dtype=np.int64)
        self._time_at = np.array(places, dtype=np.int64)
        names = [name.encode() for name, _ in self.things]
        self._key = StringColumn.of(names)
        self._partition = np.array([place for _, place in self.things], dtype=np.int64)

    def columns(self, number: int, ids: Ints) -> tuple[Ints, StringColumn]:
        """Return the things and the message values of consecutive records, starting with record ``number``."""
        at = np.arange(number, number + len(ids), dtype=np.int64)
        which = at // THINGS % 2 * THINGS + at % THINGS
        data = self._template[which]
        _fill(data, self._time_at[which], FIRST_MS + at, ids)
        start = np.arange(len(ids), dtype=np.int64) * self._width
        return at % THINGS, StringColumn(data.reshape(-1), start, start + self._length[which])

    def write(self, native: NativeWriter, topic: str, number: int, ids: Ints) -> None:
        """Send consecutive records, in order within each partition."""
        thing, value = self.columns(number, ids)
        for place in range(PARTITIONS):
            rows = np.flatnonzero(self._partition[thing] == place)
            native.write(topic, place, self._key.take(thing[rows]), value.take(rows))


_VALUE_AT: Final = _TIME_DIGITS + len(', "result": ')
_ID_AT: Final = _VALUE_AT + len('100.00, "id": "')
_ZERO: Final = ord("0")


def _fill_rows(data: Bytes, time_at: Ints, time_ms: Ints, ids: Ints) -> None:
    """Write the digits of the time, the value and the id into each row of ``data``, which holds one record."""
    for row in range(len(ids)):
        at, rest = time_at[row], time_ms[row]
        for digit in range(_TIME_DIGITS - 1, -1, -1):
            data[row, at + digit] = _ZERO + rest % 10
            rest //= 10
        rest = ids[row]
        for digit in range(_ID_DIGITS - 1, -1, -1):
            data[row, at + _ID_AT + digit] = _ZERO + rest % 10
            rest //= 10
        # The value only has to vary.
        data[row, at + _VALUE_AT + 1] = _ZERO + time_ms[row] % 10
        data[row, at + _VALUE_AT + 2] = _ZERO + time_ms[row] // 10 % 10


_fill: Any = njit(cache=True, nogil=True)(_fill_rows)


if __name__ == "__main__":
    send(*sys.argv[1:])
