"""Measures the latency of results at increasing rates, after the contender has warmed up.

The latency of a result is the time from just before its later record is passed to the producer until the committed
result reaches a consumer. Sender, contender and consumer are processes on one machine and share its clock. The first
seconds at each rate do not count. Record ids are send times in ns. The measurement ends at the first rate that the
contender cannot keep up with.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.contest.contenders import Contender
from bench.contest.running import Arena, FailedError, at_work, last_words, pairs_of, settings_of, tidy
from bench.contest.workload.inputs import message, things_by_turns
from bench.harness.pipeline import FIRST_MS, PARTITIONS
from broker.settings import KafkaSettings
from joiner.runtime.kafka.clients import make_consumer

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUANTILES: Final = (50.0, 99.0, 99.9)
WIDTH_MS: Final = 8
"""The narrowest window that misses nothing: the sender's records alternate as in the alternating workload."""
_WARM_UP_S: Final = 8.0
_START_S: Final = 90.0
_TICK_S: Final = 0.002
_GROWTH: Final = 0.2
"""A contender keeps up if its latency grows by less than this, in seconds per second."""
_DRAIN_S: Final = 3.0


def send(bootstrap: str, topic: str) -> None:
    """Send at the rate last read from standard input, which has one rate per line; 0 stops.

    ``topic`` may be two topics separated by a comma, one for each side.
    """
    topics = topic.split(",")
    producer = Producer(KafkaSettings(bootstrap_servers=bootstrap).producer_config(linger_ms=5))
    things, rate, number, stamp_ns = things_by_turns(), 0.0, 0, 0
    began_s, done = time.monotonic(), 0
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            rate, began_s, done = float(sys.stdin.readline() or 0), time.monotonic(), 0
            if not rate:
                break
        for _ in range(int((time.monotonic() - began_s) * rate) - done):
            name, place = next(things)
            # Two calls may return the same time, but ids must differ.
            stamp_ns = max(stamp_ns + 1, time.time_ns())
            side, time_ms = number // 8 % 2, FIRST_MS + number
            value = message(name, side, time_ms, stamp_ns)
            while True:
                try:
                    producer.produce(topics[side % len(topics)], value, name.encode(), place, timestamp=time_ms)
                    break
                except BufferError:
                    producer.poll(0.01)
            number, done = number + 1, done + 1
        producer.poll(0)
        time.sleep(_TICK_S)
    producer.flush()


def climb(arena: Arena, contender: Contender, rates: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Return the figures at each rate, up to the first one that the contender cannot keep up with."""
    data = f"late-{time.time_ns():x}"
    topic = arena.make_data(data, contender.topics)
    job = replace(arena.job(contender, topic, 1_000_000_000, width_ms=WIDTH_MS), is_for_latency=True)
    command = [sys.executable, "-m", "bench.contest.latency", job.kafka.bootstrap_servers, topic]
    with (
        tidy(arena, replace(job, name=data)),
        tidy(arena, job),
        at_work(contender, job) as tree,
        subprocess.Popen(command, stdin=subprocess.PIPE) as sender,  # noqa: S603 - this module
        closing(make_consumer(arena.kafka, job.name, fetch_wait_max_ms=5, auto_offset_reset="earliest")) as consumer,
    ):
        consumer.assign([TopicPartition(job.out, number, 0) for number in range(PARTITIONS)])
        try:
            _set_rate(sender, rates[0])
            deadline_s = time.monotonic() + _START_S
            while not _receive(consumer, 0.2):
                if time.monotonic() > deadline_s or all(root.poll() is not None for root in tree.roots):
                    raise FailedError(f"no result; {last_words(job)}")
            _receive(consumer, _WARM_UP_S)
            steps: list[dict[str, Any]] = []
            for rate in rates:
                found = _step(consumer, sender, rate, seconds, drain_s(contender.waits_ms, rate))
                steps.append(found | {"settings": settings_of(contender, job)})
                if not steps[-1]["keeps_up"]:
                    break
            return steps
        finally:
            _set_rate(sender, 0)


def _set_rate(sender: subprocess.Popen[bytes], rate: int) -> None:
    if sender.stdin is not None and sender.poll() is None:
        sender.stdin.write(f"{rate}\n".encode())
        sender.stdin.flush()


def drain_s(waits_ms: int, rate: int) -> float:
    """Return how long to listen after a step. Events are 1 ms apart, so ``waits_ms`` is also a number of events."""
    return _DRAIN_S + waits_ms / rate


def _step(
    consumer: Consumer, sender: subprocess.Popen[bytes], rate: int, seconds: float, listen_s: float
) -> dict[str, Any]:
    """Measure one rate for ``seconds``. Records from the last two thirds count; results may take ``listen_s`` longer.

    Sending continues until then, because a result may need later records.
    """
    _set_rate(sender, rate)
    first_ns = time.time_ns() + int(seconds / 3 * 1e9)
    arrived = _receive(consumer, seconds)
    last_ns = time.time_ns()
    # Parsed only now, so that parsing does not delay receiving.
    times_ns = _arrivals(arrived + _receive(consumer, listen_s))
    counted = times_ns[(times_ns[:, 1] >= first_ns) & (times_ns[:, 1] <= last_ns)]
    took_ms = (counted[:, 0] - counted[:, 1]) / 1e6
    is_second = counted[:, 1] >= (first_ns + last_ns) / 2
    halves = [took_ms[~is_second], took_ms[is_second]]
    grew_s = np.median(halves[1]) / 1e3 - np.median(halves[0]) / 1e3 if all(map(len, halves)) else np.inf
    return {
        "rate": rate,
        "listened_s": seconds + listen_s,
        "results": len(counted),
        "ms": quantiles_ms(took_ms),
        "max_ms": float(took_ms.max()) if len(took_ms) else None,
        "keeps_up": bool(grew_s < _GROWTH * seconds / 3 and len(halves[1]) > len(halves[0]) / 2),
    }


def quantiles_ms(took_ms: NDArray[np.float64]) -> list[float] | None:
    """Return p50, p99 and p99.9, or None if there are no results."""
    return [float(value) for value in np.percentile(took_ms, QUANTILES)] if len(took_ms) else None


def _receive(consumer: Consumer, seconds: float) -> list[tuple[int, bytes]]:
    """Return the messages that arrive within ``seconds``, each with its arrival time in ns."""
    end_s, arrived = time.monotonic() + seconds, []
    while time.monotonic() < end_s:
        messages = consumer.consume(1_000, 0.002)
        now_ns = time.time_ns()
        arrived += [(now_ns, message.value() or b"") for message in messages if message.error() is None]
    return arrived


def _arrivals(arrived: list[tuple[int, bytes]]) -> NDArray[np.int64]:
    """Return for each result when it arrived and when the later of its records was sent, in ns."""
    pairs = pairs_of([value for _, value in arrived])
    # A retracted pair is not a result.
    times_ns = [(at, max(left, right)) for (at, _), (left, right, sign) in zip(arrived, pairs, strict=True) if sign > 0]
    return np.array(times_ns, dtype=np.int64).reshape(-1, 2)


if __name__ == "__main__":
    send(*sys.argv[1:])
