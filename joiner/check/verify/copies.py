"""Checks repartitioning: each original that counts as copied has one copy, in its key's partition and in order.

The committed offsets are read before and after the copies. Originals before the first are required, and those before
the second are permitted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.partitioner import partition_of
from joiner.mapping.reading import MappedTopic
from joiner.runtime.kafka.batches.registry import schemas_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joiner.check.found.copy_log import Committed, Copy, CopyEvidence
    from joiner.check.found.evidence import Message
    from joiner.check.found.findings import Findings
    from joiner.check.verify.comparison import Outputs
    from joiner.check.verify.outputs import UnitResult
    from joiner.runtime.settings import JoinerSettings

COPIES: Final = "copies"


class _Found(NamedTuple):
    """A copy without its value, which would take much memory."""

    partition: int
    offset: int
    content: tuple[int, int, bytes | None]


class CopiesCheck:
    """The check of all topics that are repartitioned, for `joiner.check.verify.outputs.verify`."""

    def __init__(self, settings: JoinerSettings, evidence: CopyEvidence) -> None:
        self._settings, self._evidence = settings, evidence

    def add_unit(self, result: UnitResult) -> None:
        """See `FurtherCheck`."""

    def conclude(self, outputs: Outputs, findings: Findings) -> None:  # noqa: ARG002 - the protocol's
        """Check all topics."""
        for topic, target in self._settings.repartitioned.items():
            _Topic(self._settings, topic, target, self._evidence, findings).check()


class _Topic:
    def __init__(
        self, settings: JoinerSettings, topic: str, target: str, evidence: CopyEvidence, findings: Findings
    ) -> None:
        self._topic, self._target, self._evidence, self._findings = topic, target, evidence, findings
        self._count = settings.topics.partitions
        self._mapping = MappedTopic(settings.mapped_streams(target), settings.events.time_unit, schemas_of(settings))
        self._found: defaultdict[int, dict[int, _Found]] = defaultdict(dict)
        """The copies by the partition and the offset of their originals."""

    def check(self) -> None:
        due = self._evidence.committed(self._topic)
        self._findings.tally(COPIES, self._topic)
        last: dict[tuple[int, int], int] = {}
        first: dict[tuple[int, int], int] = {}
        for copy in self._evidence.copies(self._target):
            self._add(copy, first, last)
        stop = self._evidence.committed(self._topic)
        trimmed = {number for number in range(self._count) if self._evidence.first_offset(self._target, number) > 0}
        for source, committed in stop.items():
            self._compare(source, due.get(source), committed, first, trimmed)
        for source, left in self._found.items():
            low = self._evidence.first_offset(self._topic, source) if source in stop else 0
            for offset, found in left.items():
                if source not in stop or offset >= low:
                    self._differ("unexpected", source, offset, f"is in {self._at(found)}, but there is no original")

    def _add(self, copy: Copy, first: dict[tuple[int, int], int], last: dict[tuple[int, int], int]) -> None:
        topic, source, offset, _ = copy.origin
        message = copy.message
        found = _Found(message.partition, message.offset, _content(message))
        if topic != self._topic:
            self._differ("unexpected", source, offset, f"of {topic} is in {self._at(found)}")
            return
        if offset in self._found[source]:
            self._differ("doubled", source, offset, f"is in {self._at(found)} again")
            return
        way = source, message.partition
        if last.get(way, -1) > offset:
            self._differ("altered", source, offset, f"in {self._at(found)} follows that of offset {last[way]}")
        last[way] = max(offset, last.get(way, -1))
        first.setdefault(way, offset)
        self._found[source][offset] = found

    def _compare(
        self,
        source: int,
        due: Committed | None,
        stop: Committed,
        first: Mapping[tuple[int, int], int],
        trimmed: set[int],
    ) -> None:
        tally, copies = self._findings.tally(COPIES, self._topic), self._found[source]
        low = self._evidence.first_offset(self._topic, source)
        for original in self._evidence.originals(self._topic, source, low, stop.end):
            thing = self._mapping.thing_of(original.value, original.key)
            key = original.key or None if thing is None else thing.encode()
            right = source % self._count if thing is None or key is None else partition_of(key, self._count)
            found = copies.pop(original.offset, None)
            is_due = due is not None and stop.start <= original.offset < due.end
            if found is None:
                # Retention has removed all copies before the first one that is left.
                is_gone = right in trimmed and original.offset < first.get((source, right), stop.end)
                if is_due and not is_gone:
                    tally.expected += 1
                    self._differ("missing", source, original.offset, "has none")
                continue
            if is_due:
                tally.expected += 1
                tally.found += 1
            else:
                tally.after += 1
            if found.partition != right:
                self._differ("altered", source, original.offset, f"is in {self._at(found)}, not in partition {right}")
            elif found.content != _content(original._replace(key=key)):
                self._differ("altered", source, original.offset, f"in {self._at(found)} has another content")

    def _at(self, found: _Found) -> str:
        return f"{self._target} partition {found.partition} offset {found.offset}"

    def _differ(self, kind: str, source: int, offset: int, what: str) -> None:
        text = f"the copy of {self._topic} partition {source} offset {offset} {what}"
        self._findings.differ(kind, COPIES, self._topic, text)


def _content(message: Message) -> tuple[int, int, bytes | None]:
    """Return the timestamp, a hash of the value and the key. Kafka's earliest timestamp of a copy is 1 ms."""
    return max(1, message.time_ms), hash(message.value), message.key
