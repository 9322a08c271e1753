"""What a batch brought forth, and the messages that it becomes."""

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
"""The same with all values of a topic in one, a line each."""


@dataclass
class Effects:
    """What a batch brought forth, to be written in one transaction."""

    joined: Results = field(default_factory=Results)
    late: list[Late] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    unmatched: list[Unmatched] = field(default_factory=list)
    failed_pairs: dict[str, Failures] = field(default_factory=dict)
    """By join: those among the dead letters whose joining function failed."""
    appended_ms: Counter[int] = field(default_factory=Counter)
    """How many pairs there are by the time at which the later record of each was appended; empty without metrics."""

    def add(self, more: Effects) -> None:
        """Take those of a following batch."""
        self.joined += more.joined
        self.late += more.late
        self.rejected += more.rejected
        self.unmatched += more.unmatched
        add_up(self.failed_pairs, more.failed_pairs)
        self.appended_ms += more.appended_ms

    def written(self, topics: TopicSettings) -> Written:
        """What is to be written, in as few pieces as it can be."""
        found: Written = {topics.out: (self.joined.keys, self.joined.lines)} if len(self.joined) else {}
        for topic, told in ((topics.late, self.late), (topics.unmatched, self.unmatched)):
            if told:
                found[topic] = ([one.record.thing.encode() for one in told], encode_lines(told))
        if self.rejected:
            found[topics.rejected] = ([None] * len(self.rejected), encode_lines(self.rejected))
        return found

    def messages(self, topics: TopicSettings) -> Outgoing:
        """The same, each message by itself."""
        return cut_apart(self.written(topics))


def cut_apart(written: Mapping[str, tuple[Sequence[bytes | None], bytes]]) -> Outgoing:
    """Each value by itself. Raises ValueError where a topic has not as many keys as values."""
    found: Outgoing = {topic: (keys, cut_lines(lines)) for topic, (keys, lines) in written.items()}
    for topic, (keys, values) in found.items():
        if len(keys) != len(values):
            message = f"{len(keys)} keys and {len(values)} values for {topic}: a defect to report"
            raise ValueError(message)
    return found
