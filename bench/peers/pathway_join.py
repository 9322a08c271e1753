"""Temporal joins in Pathway, for comparison with the neighbour join in the benchmarks.

``interval_join`` finds all pairs within a given interval; ``asof_join`` finds the latest record at or before each
record. Two as-of joins, one per side, find the previous neighbour of each record, and so the pairs of the neighbour
join only if the sides alternate. They cannot mark a result as final: an as-of pair is written immediately, and if a
record then arrives out of order, another message with ``"diff": -1`` retracts the pair. Pathway's clock is the newest
event time in any partition. While a backlog is read, the partitions drift apart, and records behind the clock by more
than the cut-off are dropped: too small a cut-off silently loses pairs, while without a cut-off all records are kept
forever. Exactly-once delivery and persistent state require a licence key, so this script uses neither: after a restart
it rereads everything.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import pathway as pw

# In the time that the as-of joins take to write a third of their pairs, the interval join writes all of its pairs. Use
# one thread per core (two). The backlog is bounded so that a batch does not contain the whole input; an unbounded
# backlog is no faster.
SETTINGS: dict[str, Any] = {"join": "interval", "threads": 2, "commit_ms": 100, "backlog": 100_000}

VARIANTS: dict[str, dict[str, Any]] = {
    "best": {},
    "backlog-20000": {"backlog": 20_000},
    "unbounded": {"backlog": None},
    "one-thread": {"threads": 1},
    "commit-1s": {"commit_ms": 1000},
    "asof": {"join": "asof"},
    "asof-backlog-20000": {"join": "asof", "backlog": 20_000},
}


def main() -> None:
    """Run until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("data", help="topic to read")
    parser.add_argument("out", help="topic to write")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--width-ms", type=int, default=16, help="width of the interval join, to each side")
    parser.add_argument("--cutoff-ms", type=int, help="how long records are kept (default: forever)")
    parser.add_argument("--variant", choices=VARIANTS, default="best")
    parser.add_argument("--state", help="not used: no state is stored")
    options = parser.parse_args()
    chosen = SETTINGS | VARIANTS[options.variant]
    os.environ["PATHWAY_THREADS"] = str(chosen["threads"])
    records = pw.io.kafka.read(
        {"bootstrap.servers": options.bootstrap, "group.id": options.out, "auto.offset.reset": "earliest"},
        options.data,
        schema=pw.schema_from_types(thing=str, quantity=str, time=int, result=float, name=str),
        format="json",
        json_field_paths={"time": "/phenomenonTime", "name": "/id"},
        autocommit_duration_ms=chosen["commit_ms"],
        max_backlog_size=chosen["backlog"],
    )
    left, right = (records.filter(pw.this.quantity == quantity) for quantity in ("speed", "torque"))
    behavior = pw.temporal.common_behavior(cutoff=options.cutoff_ms)
    if chosen["join"] == "interval":
        near = pw.temporal.interval(-options.width_ms, options.width_ms)
        same = left.thing == right.thing
        pairs = select(left.interval_join(right, left.time, right.time, near, same, behavior=behavior), left, right)
    else:
        before = [
            one.asof_join(
                other, one.time, other.time, one.thing == other.thing, how=pw.JoinMode.LEFT, behavior=behavior
            )
            for one, other in ((left, right), (right, left))
        ]
        # The first records have no predecessor.
        one, other = (select(found, left, right) for found in before)
        pairs = one.concat_reindex(other)
    settings = {
        "bootstrap.servers": options.bootstrap,
        "compression.type": "lz4",
        "linger.ms": "5",
        "partitioner": "murmur2_random",
    }
    pw.io.kafka.write(pairs, settings, options.out, format="json", key=pairs.thing)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


def select(joined: Any, left: Any, right: Any) -> Any:
    """Convert joined records to output messages, leaving out as-of results for which no partner was found."""
    both = joined.select(
        l_thing=left.thing,
        l_name=left.name,
        l_value=left.result,
        l_time=left.time,
        r_name=right.name,
        r_value=right.result,
        r_time=right.time,
    ).filter(pw.this.l_name.is_not_none() & pw.this.r_name.is_not_none())
    return both.select(
        thing=pw.unwrap(both.l_thing),
        left=pw.unwrap(both.l_name),
        right=pw.unwrap(both.r_name),
        result=pw.unwrap(both.l_value) * pw.unwrap(both.r_value),
        phenomenonTime=(pw.unwrap(both.l_time) + pw.unwrap(both.r_time)) / 2,
    )


if __name__ == "__main__":
    main()
