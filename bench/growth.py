"""Measures whether the joiner's memory grows while it joins many records, Kafka to Kafka, exactly once.

``python -m bench.growth --report docs/evidence/growth`` writes ``.json`` and ``.md``. Records are sent as fast as the
joiner can join them, without getting far ahead of it. The resident memory of the joiner's process is read after every
few million records.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from bench.contest.load.sender import Records
from bench.harness.pipeline import PARTITIONS, Application, about, make_sender, make_topic, own_kafka
from bench.harness.report import table, write
from broker.kafka.native.writer import NativeWriter
from broker.settings import KafkaSettings
from joiner.runtime.kafka.clients import TIMEOUT_S, make_consumer

MILLION: Final = 1_000_000
_DATA: Final = "growth.data"
_AT_ONCE: Final = 20_000
_AHEAD_MAX: Final = 3 * MILLION
_LOOK_S: Final = 0.2
_STALLED_S: Final = 120.0


def memory_of(process_id: int) -> int:
    """Return the resident memory of a process in bytes."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def joined(group: Consumer) -> int:
    """Return how many input records the joiner has committed, according to the offsets of its consumer group."""
    places = [TopicPartition(_DATA, number) for number in range(PARTITIONS)]
    return sum(max(0, place.offset) for place in group.committed(places, TIMEOUT_S))


def measure(kafka: KafkaSettings, folder: Path, records: int, every: int) -> list[dict[str, Any]]:
    """Join ``records`` records. Return the memory (bytes) and the elapsed time (s) after every ``every`` records."""
    make_topic(kafka, _DATA, PARTITIONS)
    application = Application(kafka, folder, "growth", PARTITIONS, data=_DATA)
    producer = make_sender(kafka)
    native, source = NativeWriter(producer), Records()
    process, group = application.start(), make_consumer(kafka, application.settings.application.name)
    began_s = moved_s = time.monotonic()
    sent, done, found = 0, 0, list[dict[str, Any]]()
    try:
        while done < records:
            while sent < records and sent - done < _AHEAD_MAX:
                count = min(_AT_ONCE, records - sent)
                source.write(native, _DATA, sent, np.arange(sent, sent + count, dtype=np.int64))
                producer.poll(0)
                sent += count
            if sent == records:
                producer.flush()
            else:
                producer.poll(_LOOK_S)
            if process.poll() is not None or time.monotonic() - moved_s > _STALLED_S:
                raise RuntimeError(f"the joiner has exited or stopped making progress after {done:,} records")
            before, done = done, joined(group)
            moved_s = time.monotonic() if done > before else moved_s
            if done // every > before // every or done == records:
                took_s = time.monotonic() - began_s
                found.append({"records": done, "memory_bytes": memory_of(process.pid), "seconds": took_s})
                print(f"{done / MILLION:.0f} million: {found[-1]['memory_bytes'] / MILLION:.0f} MB", flush=True)
    finally:
        process.terminate()
        process.wait()
        group.close()
    return found


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=100, help="millions of records (default 100)")
    parser.add_argument("--every", type=int, default=10, help="millions between two readings (default 10)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/growth"), help="path of the .json and .md files")
    options = parser.parse_args()
    with own_kafka() as (kafka, folder):
        found = measure(kafka, folder, options.millions * MILLION, options.every * MILLION)
    rows = [
        (f"{one['records'] / MILLION:.0f}", f"{one['memory_bytes'] / MILLION:.0f}", f"{one['seconds']:.0f}")
        for one in found
    ]
    lines = table(["million records joined", "resident memory, MB", "s"], rows)
    write(options.report, "Memory of the joiner while it joins many records", about(), found, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
