"""Reads the results that a contender has written."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.contest.workload.inputs import DRIVER_AND_COLUMNS, row_of
from joiner.runtime.kafka.clients import EOF_CODE, log_range, make_reader, raise_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.contest.job import Job

    Ints = NDArray[np.int64]

_READ_S: Final = 600.0
_COUNT_S: Final = 60.0
_TAIL: Final = 30_000
"""How many results are read from the end of each partition to see how far a run has got. This is the size of the
joiner's largest batch, because the joiner orders the results within a batch by key and not by time."""


@dataclass(frozen=True)
class Results:
    """The results in an output topic, in append order: their left and right rows, and their append times in s."""

    left: Ints
    right: Ints
    at_s: NDArray[np.float64]
    withdrawn: int = 0

    @property
    def is_joined(self) -> bool:
        """Whether the results are pairs rather than passed-through records."""
        return not np.array_equal(self.left, self.right)

    def first(self, until_s: float) -> Results:
        """Return the results appended up to ``until_s``."""
        return self.first_ones(int(np.searchsorted(self.at_s, until_s, side="right")))

    def first_ones(self, count: int) -> Results:
        """Return the first ``count`` results."""
        return Results(self.left[:count], self.right[:count], self.at_s[:count])


class _Side(msgspec.Struct):
    id: str


class _Pair(msgspec.Struct):
    """A pair from the joiner or a peer, or a record copied by a pass-through. A ``diff`` of -1 retracts a pair.

    An aligned row has the value of its driver record as ``result``, and ``values``.
    """

    id: str = ""
    left: _Side | str | None = None
    right: _Side | str | None = None
    diff: int = 1
    result: float = 0.0
    values: dict[str, float | None] | None = None


_decode = msgspec.json.Decoder(list[_Pair]).decode


_NO_ROW: Final = 0
"""A row that is never the partner in an expected pair, because it is the first record of a driver."""


def pairs_of(values: list[bytes]) -> list[tuple[int, int, int]]:
    """Return the ids of the two records of each result, and its sign (-1: a retraction).

    For a passed-through record, both ids are its own. An aligned row counts as several pairs; see `expected`.
    """
    return list(chain.from_iterable(_pairs_by_message(values)))


def _pairs_by_message(values: list[bytes]) -> list[list[tuple[int, int, int]]]:
    def number(side: _Side | str | None, one: _Pair) -> int:
        return int(side.id if isinstance(side, _Side) else side or one.id)

    every = _decode(b"[" + b",".join(values) + b"]")
    return [
        [(number(one.left, one), number(one.right, one), one.diff)] if one.values is None else _pairs_of_row(one)
        for one in every
    ]


def _pairs_of_row(one: _Pair) -> list[tuple[int, int, int]]:
    driver = row_of(one.result, 0) or _NO_ROW
    sides = {name: side for side, name in enumerate(DRIVER_AND_COLUMNS) if side}
    found = [
        (row_of(value, sides[name]) if name in sides else None) or _NO_ROW
        for name, value in (one.values or {}).items()
        if value is not None
    ]
    return [(driver, row, one.diff) for row in (driver, *found)]


def read_results(job: Job) -> Results:
    """Return all committed results."""
    pairs, at_ms = _read(job, None)
    order = np.argsort(at_ms, kind="stable")
    return without_withdrawn(pairs[order], at_ms[order] / 1000)


def read_tail(job: Job) -> tuple[Ints, Ints]:
    """Return the left and right rows of the last results in each partition."""
    pairs, _ = _read(job, _TAIL)
    return pairs[:, 0], pairs[:, 1]


def _read(job: Job, last: int | None) -> tuple[Ints, Ints]:
    """Return the rows and signs (shape (n, 3)) and the append times in ms of all results.

    If ``last`` is given, only that many results at the end of each partition are read.
    """
    rows, at_ms, ended = [np.zeros((0, 3), np.int64)], [np.zeros(0, np.int64)], 0
    with closing(make_reader(job.kafka, "bench", queued_max_messages_kbytes=64 * 1024)) as consumer:
        starts = [0] * job.partitions
        if last is not None:
            ranges = [log_range(consumer, job.out, number) for number in range(job.partitions)]
            starts = [max(low, high - last) for low, high in ranges]
        consumer.assign([TopicPartition(job.out, number, start) for number, start in enumerate(starts)])
        deadline_s = time.monotonic() + _READ_S
        while ended < job.partitions:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{job.out} could not be read within {_READ_S:.0f} s")
            messages = []
            for message in consumer.consume(20_000, 0.1):
                error = message.error()
                if error is not None and error.code() == EOF_CODE:
                    ended += 1
                    continue
                raise_for(message)
                messages.append(message)
            if messages:
                found = _pairs_by_message([message.value() or b"" for message in messages])
                times_ms = np.array([message.timestamp()[1] for message in messages], dtype=np.int64)
                rows.append(np.array(list(chain.from_iterable(found)), dtype=np.int64))
                at_ms.append(times_ms.repeat([len(pairs) for pairs in found]))
    return np.concatenate(rows), np.concatenate(at_ms)


def without_withdrawn(pairs: Ints, at_s: NDArray[np.float64]) -> Results:
    """Remove retracted pairs. If a pair was written several times, its earliest copies are removed first."""
    gone, times = np.unique(pairs[pairs[:, 2] < 0, :2], axis=0, return_counts=True)
    left = dict(zip(map(tuple, gone.tolist()), times.tolist(), strict=True))
    kept = pairs[:, 2] > 0
    for row in np.flatnonzero(kept) if left else ():
        pair = (int(pairs[row, 0]), int(pairs[row, 1]))
        if left.get(pair):
            left[pair] -= 1
            kept[row] = False
    return Results(pairs[kept, 0], pairs[kept, 1], at_s[kept], withdrawn=len(pairs) - int((pairs[:, 2] > 0).sum()))


def count_results(consumer: Consumer, job: Job) -> int:
    """Return the sum of the result topic's end offsets. With transactions it slightly exceeds the number of results.

    Raises `KafkaException` if the broker does not answer within a minute. Returning a smaller number, such as 0, would
    end a run.
    """
    deadline_s = time.monotonic() + _COUNT_S
    while True:
        try:
            ends = [
                consumer.get_watermark_offsets(TopicPartition(job.out, number), timeout=10)
                for number in range(job.partitions)
            ]
            return sum(high for _, high in ends)
        except KafkaException:  # the topic is being created, or the broker is busy
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
