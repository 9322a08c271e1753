"""Compares when the replicas of an application have written the same results. Pure.

The times are those at which Kafka appended the results. A reader sees them once their transaction is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Final, NamedTuple

import msgspec

STRETCH_MS: Final = 60_000
"""Only results appended in the last minute before the newest one are compared."""

_TWO: Final = 2


class Lead(msgspec.Struct, frozen=True):
    """How long before the next replica a result was written, in ms: the median and the 99th percentile."""

    median_ms: int
    p99_ms: int


class Compared(msgspec.Struct, frozen=True):
    """Which results were compared.

    ``results``: how many. All replicas that have written any results in that stretch of time have written these.
    ``begin_ms``, ``end_ms``: the first and the last time at which one of them was first appended, in ms since the
    epoch; 0 if there are none. ``same``: for how many of them several replicas were first in the same ms. ``missing``:
    how many other results of that stretch were found, which only some of the replicas have written so far. ``lead``:
    that of the first replica, 0 in the same ms; None if there are none.
    """

    results: int
    begin_ms: int
    end_ms: int
    same: int
    missing: int
    lead: Lead | None


class ReplicaLead(NamedTuple):
    """How many of the compared results a replica was first to write, alone, and by how much; None if there are none."""

    first: int
    lead: Lead | None


class Leads(NamedTuple):
    """What was compared, and which replica was first. ``replicas``: by number."""

    compared: Compared
    replicas: list[ReplicaLead]


class ResultLog:
    """The newest results of a replica in a partition, as far as they were read: when each was appended, by id."""

    def __init__(self) -> None:
        self.at_ms: dict[str, int] = {}
        self.since_ms = 0
        """Everything that was appended later was read, unless it is newer than the end of the reading."""

    def add(self, value: bytes | None, at_ms: int) -> None:
        """Add a message. Start records and watermarks have no id, and other messages are no results in JSON."""
        try:
            identity = _results.decode(value or b"").id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        # After a reset, a replica may have written the same again.
        self.at_ms[identity] = min(at_ms, self.at_ms.get(identity, at_ms))


class _Result(msgspec.Struct, gc=False):
    id: str


_results: Final = msgspec.json.Decoder(_Result)


def leads_of(partitions: Iterable[Mapping[int, ResultLog]], replicas: int) -> Leads:
    """Compare what was read of some partitions. Each has the logs of the replicas that have one, by replica."""
    found = [logs for logs in partitions if any(log.at_ms for log in logs.values())]
    end_ms = max((max(log.at_ms.values()) for logs in found for log in logs.values() if log.at_ms), default=0)
    ahead_ms: dict[int, list[int]] = {number: [] for number in range(replicas)}
    firsts_ms: list[int] = []
    same = missing = 0
    for logs in found:
        for copies, is_complete in _results_in(logs, end_ms):
            if not is_complete:
                missing += 1
                continue
            (first_ms, replica), (next_ms, _) = copies[:_TWO]
            firsts_ms.append(first_ms)
            if first_ms == next_ms:
                same += 1
            else:
                ahead_ms[replica].append(next_ms - first_ms)
    everything = [0] * same + [ahead for of_replica in ahead_ms.values() for ahead in of_replica]
    ends = (min(firsts_ms), max(firsts_ms)) if firsts_ms else (0, 0)
    compared = Compared(len(firsts_ms), *ends, same, missing, _lead_of(everything))
    return Leads(compared, [ReplicaLead(len(of_replica), _lead_of(of_replica)) for of_replica in ahead_ms.values()])


def _results_in(logs: Mapping[int, ResultLog], end_ms: int) -> Iterator[tuple[list[tuple[int, int]], bool]]:
    """Yield the results of a partition: when which replica has written them, earliest first, and whether all have.

    Kafka gives everything that arrives together the same time. What has the time of the oldest message that was read
    was therefore perhaps not read completely, and is left out.
    """
    begin_ms = max(end_ms - STRETCH_MS, *(log.since_ms + 1 for log in logs.values()))
    writing = sum(any(at_ms >= begin_ms for at_ms in log.at_ms.values()) for log in logs.values())
    copies: dict[str, list[tuple[int, int]]] = {}
    for replica, log in logs.items():
        for identity, at_ms in log.at_ms.items():
            copies.setdefault(identity, []).append((at_ms, replica))
    for of_result in copies.values():
        of_result.sort()
        if of_result[0][0] >= begin_ms:
            yield of_result, len(of_result) >= max(_TWO, writing)


def _lead_of(ahead_ms: list[int]) -> Lead | None:
    if not ahead_ms:
        return None
    ordered = sorted(ahead_ms)
    median, p99 = (ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
    return Lead(median, p99)
