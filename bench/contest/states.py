"""Samples how many records a contender holds and how many bytes it stores.

The samples are taken the same way for all contenders, but the bytes are not directly comparable. For a peer, they are
the size of all files in its state folder, measured every half second, including old versions, logs and checkpoints that
the engine has not deleted yet. For the joiner, which has no such folder, they are the size of the newest snapshot of
each unit. An engine that keeps its state only in memory or in Kafka has none. In addition, Spark prints the number of
records in its state after each batch, and the joiner writes the number of records it holds to each checkpoint. All
contenders are compared at the same input positions, spaced a tenth of the input apart. The state at a position is the
newest sample as of when the contender's results reached that position.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from confluent_kafka import KafkaException

from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import log_range, read_to_end
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.model import SLOTS, checkpoint_key, decode_checkpoint, decode_manifest, manifest_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.runtime.settings import JoinerSettings

    Ints = NDArray[np.int64]

POSITIONS: Final = tuple(tenth / 10 for tenth in range(1, 10))
"""The input positions at which states are compared, as shares of the input."""


class State(NamedTuple):
    """A sample of a contender's state at a point in time. Unknown values are None.

    ``rows`` is the number of held records, and ``bytes`` is the size of the stored state. ``batch_rows`` is the number
    of records in the batch just processed; if an engine releases records only in the next batch, ``rows`` includes
    them. If parts of the state are sampled separately, such as the joiner's units, ``part`` is the number of this part;
    the whole state is then the sum of the newest samples of all parts.
    """

    at_s: float
    rows: int | None = None
    bytes: int | None = None
    batch_rows: int | None = None
    part: int = 0


def printed(paths: Iterable[Path]) -> list[State]:
    """Return the samples that a contender has printed: the JSON lines with ``at_s`` in its output files."""
    found = []
    for path in sorted(paths):
        for line in path.read_text(errors="replace").splitlines():
            try:
                values = json.loads(line) if line.startswith("{") else {}
            except ValueError:
                continue  # output of another program
            if "at_s" in values:
                # Spark reports 0 rows if it is configured not to count them.
                rows, batch = values.get("state_rows") or None, values.get("records")
                found.append(State(float(values["at_s"]), rows=rows, batch_rows=batch))
    return found


def of_joiner(settings: JoinerSettings, topic: str) -> list[State]:
    """Return a sample for each checkpoint and snapshot in the joiner's state topic. Call this before it is compacted.

    ``topic`` is the input topic. Batch sizes are computed from the offsets in this topic that the checkpoints record.
    """
    try:
        with closing(Readers(settings, SystemClock())) as readers:
            return [state for unit in range(settings.topics.partitions) for state in _of_unit(readers, topic, unit)]
    except KafkaException:
        return []  # the joiner has not created the topic


def _of_unit(readers: Readers, topic: str, unit: int) -> Iterator[State]:
    manifests, consumed = {manifest_key(unit, slot) for slot in range(SLOTS)}, 0
    state_topic = readers.settings.state_topic
    for message in read_to_end(
        readers.log, readers.clock, state_topic, unit, *log_range(readers.log, state_topic, unit)
    ):
        key, value = (message.key() or b"").decode(), message.value()
        if value is None:
            continue
        at_s = message.timestamp()[1] / 1000
        if key == checkpoint_key(unit):
            checkpoint = decode_checkpoint(value)
            rows = sum(one.held_left + one.held_right for one in checkpoint.joins.values())
            rows += sum(sum(one.held.values()) for one in checkpoint.aligns.values())
            offset = checkpoint.offsets.get(topic, 0)
            yield State(at_s, rows=rows, batch_rows=offset - consumed, part=unit)
            consumed = offset
        elif key in manifests:
            yield State(at_s, bytes=decode_manifest(value).length, part=unit)


def time_of_position(position: Ints, at_s: NDArray[np.float64]) -> Callable[[int], float | None]:
    """Return a function that maps an input position, in rows, to the time when the results of a run reached it.

    ``position`` contains how many rows had been processed when each result was written, and ``at_s`` when that was.
    """

    def time_of(row: int) -> float | None:
        place = int(np.searchsorted(position, row))
        return float(at_s[place]) if place < len(at_s) else None

    return time_of


def summarise(
    states: Sequence[State], rows: int, time_of: Callable[[int], float | None], needed: Callable[[int], int]
) -> dict[str, Any]:
    """Return the median and the maximum of each figure over the positions that the run reached.

    ``rows`` is the number of rows in the input. ``needed`` returns how many records must be held at a position because
    they have a neighbour after it. The returned ``batch_share`` is the largest share of held records that may be held
    only because their batch is still in progress.
    """
    found: dict[str, list[float]] = {}
    positions = 0
    for share in POSITIONS:
        at_s = time_of(int(share * rows))
        if at_s is None:
            break
        positions += 1
        found.setdefault("needed_rows", []).append(needed(int(share * rows)))
        for name in ("rows", "bytes", "batch_rows"):
            value = _known(states, name, at_s)
            if value is not None:
                found.setdefault(name, []).append(value)
    figures: dict[str, Any] = {name: [statistics.median(all_of), max(all_of)] for name, all_of in found.items()}
    if "rows" in found and "batch_rows" in found:
        pairs = zip(found["rows"], found["batch_rows"], strict=False)
        figures["batch_share"] = max(min(1.0, batch / max(1.0, held)) for held, batch in pairs)
    return {"positions": positions} | figures


def _known(states: Sequence[State], name: str, at_s: float) -> float | None:
    """Return the newest value of a figure sampled up to ``at_s``, summed over the parts of the state."""
    newest: dict[int, State] = {}
    for one in states:
        if one.at_s <= at_s and getattr(one, name) is not None and one.at_s >= newest.get(one.part, one).at_s:
            newest[one.part] = one
    return sum(getattr(one, name) for one in newest.values()) if newest else None
