"""Exactly-once as-of joins in Quix Streams, for comparison with the neighbour join in the benchmarks.

``join_asof`` joins each left record with the latest right record at or before it. Two such joins, one per side, find
the previous neighbour of each record. Unlike the neighbour join, they have these limitations:

- They do not find the next neighbour of a record, unless the record is that neighbour's previous one. If a side sends
  several records in a row, the pairs of all but the last one with the record that follows are missing. So they find all
  pairs only if the sides alternate.
- They cannot join a topic with itself, so this script reads two topics with equal partitions: DATA is ``left,right``.
- They do not wait for late records: a record is joined only with records that have already arrived.
- The two topics are read in the order of Kafka's timestamps, so these must be the event times
  (``message.timestamp.type=CreateTime``); otherwise wrong pairs are written.
- Two records with equal times are written as a pair twice, once from each side.

The variant ``interval`` uses Quix Streams' interval join. It finds all pairs within the interval, even if one of the
topics is out of order. But it only looks back, so it also depends on the order in which the topics are read.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from quixstreams import Application

# Only one process: in most runs, half of the partitions stopped for good once a second process had joined the consumer
# group. The read-ahead per partition (`ahead`) limits how far one topic can get ahead of the other.
SETTINGS: dict[str, Any] = {
    "join": "asof",
    "sides": "both",
    "guarantee": "exactly-once",
    "processes": 1,
    "commit_s": 1.0,
    "ahead": 10_000,
    # The same linger time as the joiner's producer. Both use librdkafka, so the batch size is the same, too.
    "linger_ms": 5,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "best": {},
    "two-processes": {"processes": 2},
    "left-only": {"sides": "left"},
    "interval": {"join": "interval"},
    "interval-two-processes": {"join": "interval", "processes": 2},
    "at-least-once": {"guarantee": "at-least-once"},
    "commit-5s": {"commit_s": 5.0},
    **{f"commit-{ms}ms": {"commit_s": ms / 1000} for ms in (50, 200)},
    "linger-20ms": {"linger_ms": 20},
    "ahead-50000": {"ahead": 50_000},
    "ahead-1000": {"ahead": 1000},
}


def main() -> None:
    """Run until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("data", help="topics to read: left,right")
    parser.add_argument("out", help="topic to write")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--width-ms", type=int, default=16, help="half-width of the interval join, in ms")
    parser.add_argument("--grace-ms", type=int, default=10_000, help="how long records are kept")
    parser.add_argument("--variant", choices=VARIANTS, default="best")
    parser.add_argument("--state", type=Path, help="folder for the state")
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = SETTINGS | VARIANTS[options.variant]
    state = options.state or Path(tempfile.mkdtemp(prefix="quix-"))
    others = []
    if options.number == 0:
        again = [sys.executable, *sys.argv, "--state", str(state), "--number"]
        others = [subprocess.Popen([*again, str(number)]) for number in range(1, chosen["processes"])]
    application = Application(
        options.bootstrap,
        consumer_group=options.out,
        auto_offset_reset="earliest",
        processing_guarantee=chosen["guarantee"],
        commit_interval=chosen["commit_s"],
        max_partition_buffer_size=chosen["ahead"],
        state_dir=state / str(options.number),
        producer_extra_config={"compression.type": "lz4", "linger.ms": chosen["linger_ms"]},
        consumer_extra_config={"isolation.level": "read_committed"},
        loglevel="WARNING",
    )
    left, right = (
        application.dataframe(application.topic(name, timestamp_extractor=lambda value, *_: value["phenomenonTime"]))
        for name in options.data.split(",")
    )
    out = application.topic(options.out)
    if chosen["join"] == "interval":
        width = {"backward_ms": options.width_ms, "forward_ms": options.width_ms}
        left.join_interval(right, on_merge=pair, grace_ms=max(options.grace_ms, options.width_ms), **width).to_topic(
            out
        )
    else:
        left.join_asof(right, on_merge=pair, grace_ms=options.grace_ms, name="before-left").to_topic(out)
        if chosen["sides"] == "both":
            heartbeat = right.join_asof(
                left, on_merge=lambda after, before: pair(before, after), grace_ms=options.grace_ms, name="before-right"
            )
            heartbeat.to_topic(out)
    application.run()
    for other in others:
        other.terminate()
    for other in others:
        other.wait()


def pair(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Return a pair in output form."""
    return {
        "thing": left["thing"],
        "left": left["id"],
        "right": right["id"],
        "result": left["result"] * right["result"],
        "phenomenonTime": (left["phenomenonTime"] + right["phenomenonTime"]) / 2,
    }


if __name__ == "__main__":
    main()
