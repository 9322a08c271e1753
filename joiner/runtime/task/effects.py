"""The effects of a batch: results, late and unmatched records, and dead letters; and their messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.wire.records import Late, Rejected, Unmatched, cut_lines, encode_lines
from joiner.runtime.task.emit import Results
from joiner.runtime.task.function_failures import Failures, add_up

if TYPE_CHECKING:
    from broker.settings import TopicSettings

Outgoing = dict[str, tuple[Sequence[bytes | None], Sequence[bytes | None]]]
"""Messages by topic: their keys and their values."""

Written = dict[str, tuple[Sequence[bytes | None], bytes]]
"""Messages by topic: their keys, and their values as one piece of lines."""


@dataclass
class Effects:
    """The effects of a batch, written in one transaction."""

    joined: Results = field(default_factory=Results)
    late: list[Late] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    unmatched: list[Unmatched] = field(default_factory=list)
    failed_pairs: dict[str, Failures] = field(default_factory=dict)
    """The pairs whose joining function failed, by join. They are among the dead letters."""
    appended_ms: Counter[int] = field(default_factory=Counter)
    """The number of pairs by the append time (ms) of the later record; empty without metrics."""

    def add(self, more: Effects) -> None:
        """Add the effects of a following batch."""
        self.joined += more.joined
        self.late += more.late
        self.rejected += more.rejected
        self.unmatched += more.unmatched
        add_up(self.failed_pairs, more.failed_pairs)
        self.appended_ms += more.appended_ms

    def written(self, topics: TopicSettings) -> Written:
        """Return the messages to write, in as few pieces as possible."""
        found: Written = {topics.out: (self.joined.keys, self.joined.lines)} if len(self.joined) else {}
        for topic, records in ((topics.late, self.late), (topics.unmatched, self.unmatched)):
            if records:
                found[topic] = ([one.record.thing.encode() for one in records], encode_lines(records))
        if self.rejected:
            found[topics.rejected] = ([None] * len(self.rejected), encode_lines(self.rejected))
        return found

    def messages(self, topics: TopicSettings) -> Outgoing:
        """Return the messages to write, one by one."""
        return cut_apart(self.written(topics))


def cut_apart(written: Mapping[str, tuple[Sequence[bytes | None], bytes]]) -> Outgoing:
    """Split the values of each topic. Raises ValueError if a topic has not as many keys as values."""
    found: Outgoing = {topic: (keys, cut_lines(lines)) for topic, (keys, lines) in written.items()}
    for topic, (keys, values) in found.items():
        if len(keys) != len(values):
            message = f"{len(keys)} keys and {len(values)} values for {topic}: a defect to report"
            raise ValueError(message)
    return found
