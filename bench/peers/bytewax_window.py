"""A windowed join in bytewax with at-least-once delivery, for comparison with the neighbour join.

bytewax joins only within tumbling, sliding or session windows. Tumbling windows lose the pairs across their boundaries.
Sliding windows that are twice as long as the join's width, and start one width apart, contain every pair within the
width; a pair that lies in two windows is written for the first one only.

bytewax's own ``join_window`` expects two streams. If one stream is branched into two, all left records of a batch come
before its right records, which are then late unless the lateness covers the event time of a whole batch. So this
program collects both sides in one window and forms all pairs there. The variant ``join-window`` uses ``join_window``.

Unlike a neighbour join, a windowed join cannot express "the nearest record": the user must know the width. Nor is this
join exactly once, because bytewax's Kafka sink has no transactions. The last windows of a thing stay open, and their
pairs are not written, until a later record of that thing arrives.

The variants named ``by-hand`` implement the neighbour join as users would write it for ordered records (`meet`). They
cannot handle disorder: a record that is older than the newest one of its thing is ignored.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.operators.windowing import EventClock, SlidingWindower, TumblingWindower, collect_window, join_window
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

# Use two processes, because workers in one process share the GIL, and large batches, because the sink flushes each
# batch.
SETTINGS: dict[str, Any] = {"window": "sliding", "processes": 2, "batch": 10_000, "epoch_s": 1}

VARIANTS: dict[str, dict[str, Any]] = {
    "best": {},
    "tumbling": {"window": "tumbling"},
    "join-window": {"window": "join"},
    "one-process": {"processes": 1},
    "batch-1000": {"batch": 1000},
    "epoch-10s": {"epoch_s": 10},
    "by-hand": {"window": "none"},
    "by-hand-one-process": {"window": "none", "processes": 1},
}

Record = dict[str, Any]

QUANTITIES = ("speed", "torque")
"""The quantities of the left and the right side."""

ORIGIN = datetime(2000, 1, 1, tzinfo=UTC)

JOIN_LATENESS_MS = 60_000
"""Lateness for ``join-window``. After the branch, all records of one side come before all records of the other, so it
must exceed the event time of a batch."""


def main() -> None:
    """Run until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("data", help="topic to read")
    parser.add_argument("out", help="topic to write")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--width-ms", type=int, default=16, help="width of the window, to each side")
    parser.add_argument("--lateness-ms", type=int, default=0, help="how far records of a thing may be out of order")
    parser.add_argument("--variant", choices=VARIANTS, default="best")
    parser.add_argument("--state", type=Path, help="folder for the recovery store")
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = SETTINGS | VARIANTS[options.variant]
    state = options.state or Path(tempfile.mkdtemp(prefix="bytewax-"))
    port = options.port or 10_000 + os.getpid() % 20_000
    addresses = [f"127.0.0.1:{port + number}" for number in range(chosen["processes"])]
    others = []
    if options.number == 0:
        state.mkdir(parents=True, exist_ok=True)
        init_db_dir(state, options.partitions)
        again = [sys.executable, *sys.argv, "--state", str(state), "--port", str(port)]
        others = [subprocess.Popen([*again, "--number", str(number)]) for number in range(1, len(addresses))]

    def stop(*_: object) -> None:
        for other in others:
            other.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    flow = Dataflow("pairs")
    source = KafkaSource([options.bootstrap], [options.data], batch_size=chosen["batch"])
    messages = op.input("read", flow, source)
    if chosen["window"] == "none":
        # Without a window, no clock reads the time.
        pairs = op.stateful_flat_map("join", op.map("parse", messages, parse), meet)
    else:
        pairs = join(
            op.map("parse", messages, parse_with_time), options.width_ms, options.lateness_ms, chosen["window"]
        )
    settings = {"compression.type": "lz4", "linger.ms": "5", "partitioner": "murmur2_random"}
    op.output("write", op.map("encode", pairs, encode), KafkaSink([options.bootstrap], options.out, settings))
    several = {"process_id": options.number, "addresses": addresses} if len(addresses) > 1 else {}
    epoch = timedelta(seconds=chosen["epoch_s"])
    cli_main(flow, epoch_interval=epoch, recovery_config=RecoveryConfig(str(state)), **several)


def parse(message: Any) -> tuple[str, Record]:
    """Parse a record. Return its key, which is the thing, and the record."""
    record = orjson.loads(message.value)
    return record["thing"], record


def parse_with_time(message: Any) -> tuple[str, Record]:
    """Parse a record and its time, which the clock of a window needs as a datetime."""
    thing, record = parse(message)
    record["at"] = datetime.fromtimestamp(record["phenomenonTime"] / 1000, UTC)
    return thing, record


def join(records: Any, width_ms: int, lateness_ms: int, window: str) -> Any:
    """Return a stream of all pairs of records that are in the same window and at most ``width_ms`` apart."""
    width = timedelta(milliseconds=width_ms)
    windows = TumblingWindower(align_to=ORIGIN, length=width)
    if window != "tumbling":
        windows = SlidingWindower(2 * width, width, ORIGIN)
    if window == "join":
        lateness_ms = max(lateness_ms, JOIN_LATENESS_MS)
    # By default, event time also advances with the wall clock, which would make the records of a backlog late.
    clock = EventClock(lambda record: record["at"], timedelta(milliseconds=lateness_ms), now_getter=lambda: ORIGIN)

    def near(item: Any) -> Any:
        number, (left, right) = item
        # A window may contain only one side. If a pair is in two windows, it is written for the first one only.
        if left is None or right is None or abs(left["at"] - right["at"]) > width:
            return None
        first = (min(left["at"], right["at"]) - ORIGIN) // width
        return (left, right) if first == number or window == "tumbling" else None

    def product(item: Any) -> Any:
        number, found = item
        left = [record for record in found if record["quantity"] == "speed"]
        right = [record for record in found if record["quantity"] == "torque"]
        return ((number, pair) for pair in itertools.product(left, right))

    if window == "join":
        sides = op.branch("sides", records, lambda item: item[1]["quantity"] == "speed")
        joined = join_window(
            "join", clock, windows, sides.trues, sides.falses, insert_mode="product", emit_mode="final"
        ).down
    else:
        joined = op.flat_map_value("product", collect_window("collect", records, clock, windows).down, product)
    return op.filter_map_value("near", joined, near)


@dataclass
class Thing:
    """The state in which the next record of a thing finds its neighbours. bytewax copies and stores it at each epoch.

    ``now`` contains the records of each side at the newest time, ``before`` the last record of each side before that
    time, and ``waiting`` the records before that time which have no next neighbour yet, all of the side
    ``waiting_side``. ``is_paired`` says whether the first record in ``now`` is paired with its previous neighbour.
    """

    time_ms: float = -math.inf
    now: tuple[list[Record], list[Record]] = field(default_factory=lambda: ([], []))
    before: list[Record | None] = field(default_factory=lambda: [None, None])
    waiting: list[Record] = field(default_factory=list)
    waiting_side: int = 0
    is_paired: bool = False

    def advance(self, time_ms: float) -> list[tuple[Record, Record]]:
        """Advance to a later time. Return the pairs that become certain because no record at the old time follows."""
        pairs: list[tuple[Record, Record]] = []
        left, right = self.now
        if left and right:
            # On arrival, each was paired with the first record of the other side. Each is also a neighbour of the last.
            pairs += [(one, right[-1]) for one in left[1:] if len(right) > 1]
            pairs += [(left[-1], one) for one in right[1:-1] if len(left) > 1]
        else:
            side, some = (0, left) if left else (1, right)
            previous = self.before[1 - side]
            if previous is not None:
                pairs += [(one, previous) for one in some[self.is_paired :]]
            self.waiting, self.waiting_side = self.waiting + some, side
        self.before = [some[-1] if some else old for some, old in zip(self.now, self.before, strict=True)]
        self.time_ms, self.now, self.is_paired = time_ms, ([], []), False
        return pairs


def meet(state: Thing | None, record: Record) -> tuple[Thing, list[tuple[Record, Record]]]:
    """Take the next record of a thing. Return the new state, and the pairs that the record makes certain.

    The rule is that of the peers in Java (``jvm/common/Neighbours.java``): a record's neighbours are the last record of
    the other side at or before it, and the first one at or after it. Records with equal times are ordered by arrival.
    """
    thing, pairs = state or Thing(), list[tuple[Record, Record]]()
    side, time_ms = QUANTITIES.index(record["quantity"]), record["phenomenonTime"]
    if time_ms < thing.time_ms:
        return thing, pairs
    if time_ms > thing.time_ms:
        pairs = thing.advance(time_ms)
    own, others = thing.now[side], thing.now[1 - side]
    if not own and thing.waiting and thing.waiting_side != side:
        pairs += [(record, one) for one in thing.waiting]
        thing.waiting, thing.is_paired = [], True
    pairs += [(record, other) for other in (others[:1] if own else others)]
    own.append(record)
    return thing, [(one, other) if one["quantity"] == QUANTITIES[0] else (other, one) for one, other in pairs]


def encode(item: tuple[str, tuple[Record, Record]]) -> KafkaSinkMessage[bytes, bytes]:
    """Return a pair as a message."""
    thing, (left, right) = item
    pair = {
        "thing": thing,
        "left": left["id"],
        "right": right["id"],
        "result": left["result"] * right["result"],
        "phenomenonTime": (left["phenomenonTime"] + right["phenomenonTime"]) / 2,
    }
    return KafkaSinkMessage(thing.encode(), orjson.dumps(pair))


if __name__ == "__main__":
    main()
