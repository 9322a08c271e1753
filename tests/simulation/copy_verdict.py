"""Checks the copies in an in-memory broker. It uses only the format of the notes of the code that makes them.

At any moment, even while transactions are in flight, each original before the committed offset has one copy, and no
other has one. What retention has removed is read from the archive of the in-memory broker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.partitioner import partition_of
from broker.wire.origin import ORIGIN_HEADER, decode_origin
from joiner.runtime.repartition.progress import decode_progress
from tests.simulation.memory_log import COMMITTED, Entry

if TYPE_CHECKING:
    from joiner.runtime.settings import JoinerSettings
    from tests.simulation.memory_groups import Place
    from tests.simulation.memory_kafka import MemoryKafka


def committed_offsets(kafka: MemoryKafka, group: str) -> dict[Place, int]:
    """Return the committed offsets of a group, with those of transactions that are committed but not marked yet."""
    found = dict(kafka.committed.get(group, {}))
    for transaction in kafka.decided:
        if transaction.state == COMMITTED:
            found |= transaction.offsets.get(group, {})
    return found


def begin_of_copying(kafka: MemoryKafka, settings: JoinerSettings, topic: str, partition: int) -> int:
    """Return where copying of a partition began that was not copied from its start, as far as that can be told."""
    progress = decode_progress(kafka.notes.get(settings.repartition_group, {}).get((topic, partition), ""))
    begin = kafka.log(topic, partition).end if progress is None else progress.start
    for log in kafka.topics[settings.repartitioned[topic]].logs:
        for entry in log.archive:
            if entry.is_committed:
                _, source, offset, _ = decode_origin(dict(entry.headers or [])[ORIGIN_HEADER] or b"")
                begin = min(begin, offset) if source == partition else begin
    return begin


def fault_in_copies(kafka: MemoryKafka, settings: JoinerSettings, begins: Mapping[Place, int], *, lost: bool) -> str:
    """Return what is wrong with the copies, or an empty text.

    ``begins``: where the originals begin that count, if that is not 0. ``lost``: whether committed offsets may be
    missing or wrong.
    """
    ends = committed_offsets(kafka, settings.repartition_group)
    for topic, target in settings.repartitioned.items():
        left = {
            (partition, entry.offset): entry
            for partition, log in enumerate(kafka.topics[topic].logs)
            for entry in log.archive
            if entry.is_committed and entry.offset >= begins.get((topic, partition), 0)
        }
        copied, fault = _take_copies(kafka, settings, topic, target, left)
        if fault:
            return fault
        for partition, offset in left:
            end = ends.get((topic, partition), 0)
            if (offset < end and not lost) or offset < copied.get(partition, 0):
                return f"{topic} partition {partition} offset {offset} has no copy, but {end} is committed"
        if not lost and (ahead := [at for at, last in copied.items() if last >= ends.get((topic, at), 0)]):
            return f"{topic}: partitions {ahead} are copied beyond the committed offsets {ends}: {copied}"
    return ""


def _take_copies(
    kafka: MemoryKafka, settings: JoinerSettings, topic: str, target: str, left: dict[tuple[int, int], Entry]
) -> tuple[dict[int, int], str]:
    """Remove the originals that have a copy from ``left``. Return the last of each partition, and what is wrong."""
    count = settings.topics.partitions
    last: dict[tuple[int, int], int] = {}
    copied: dict[int, int] = {}
    for partition, log in enumerate(kafka.topics[target].logs):
        for entry in log.archive:
            if not entry.is_committed:
                continue
            found, source, offset, topic_id = decode_origin(dict(entry.headers or [])[ORIGIN_HEADER] or b"")
            original = left.pop((source, offset), None)
            where = f"the copy of {found} ({topic_id}) partition {source} offset {offset} in partition {partition}"
            if original is None or found != topic:
                return copied, f"{where} is there twice, or there is no original"
            if last.get((source, partition), -1) > offset:
                return copied, f"{where} is behind that of {last[source, partition]}"
            last[source, partition] = offset
            copied[source] = max(offset, copied.get(source, -1))
            key, right = _right_place(original, source, count)
            wanted = key, original.value, original.time_ms, right
            if wanted != (given := (entry.key, entry.value, entry.time_ms, partition)):
                return copied, f"{where} is {given}, not {wanted}"
    return copied, ""


def _right_place(original: Entry, source: int, count: int) -> tuple[bytes | None, int]:
    try:
        key = json.loads(original.value or b"")["id"].encode()
    except ValueError:
        return original.key, source % count
    return key, partition_of(key, count)
