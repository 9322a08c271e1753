"""What a unit has committed and Kafka may not have ended in every partition yet: known by first records.

Kafka ends a committed transaction in one partition after the other, behind its answer, and may forget some of them
(see `dangling`). A partition's stable end is the first record of the oldest transaction that is open in it. So one of
ours is ended there as soon as the stable end lies behind its first record; and where the stable end *is* such a
record, what is open is ours and not another program's.

No Kafka here: offsets come in, answers go out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from joiner.runtime.model import FirstRecord

FIRSTS_MAX: Final = 10_000
"""Transactions of a topic of which the offsets are kept; only whether the oldest open one is ours rests on it."""


class _Named(msgspec.Struct):
    """What results, late and unmatched records and dead letters tell of themselves, as far as it matters here."""

    id: str = ""
    application: str = ""
    source: str = ""


def identity_of(value: bytes | None) -> str:
    """What tells a record in a result topic from others, also of other applications; empty where it has no id.

    The ids of results hold the names of their joins, which no two applications of a topic share.
    """
    try:
        named = msgspec.json.decode(value or b"", type=_Named)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return f"{named.application or named.source} {named.id}" if named.id else ""


class PendingMarkers:
    """Of one owner of one unit. By topic, for the unit's partition."""

    def __init__(self) -> None:
        self._firsts: dict[str, list[int]] = {}
        # What comes next in a topic lies behind it.
        self._bounds: dict[str, int] = {}
        self._last: dict[str, FirstRecord] = {}
        # The last transactions of what a replay from the newest snapshot would not bring forth again.
        self._before_snapshot: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.topics())

    def begin_behind(self, line: Mapping[str, int]) -> None:
        """Everything before these offsets is decided."""
        self._bounds = dict(line)

    def records(self, identities: Mapping[str, str]) -> dict[str, FirstRecord]:
        """What the checkpoint of a transaction has to tell, which begins with ``identities`` in its topics."""
        found = dict(self._last)
        for topic, identity in identities.items():
            found.pop(topic, None)
            if identity:
                found[topic] = FirstRecord(identity, self._bounds.get(topic, 0))
        return found

    def add(self, firsts: Mapping[str, int], identities: Mapping[str, str], *, is_base: bool) -> None:
        """A transaction was committed. ``is_base``: it is a claim's, or holds a snapshot: replays begin behind it."""
        for topic, at in firsts.items():
            known = self._firsts.setdefault(topic, [])
            known.append(at)
            del known[:-FIRSTS_MAX]
            self._bounds[topic] = at
        for topic, identity in identities.items():
            self._last[topic] = FirstRecord(identity, firsts[topic])
        if is_base:
            self._before_snapshot = {topic: known[-1] for topic, known in self._firsts.items() if known}

    def note(self, stable: Mapping[str, int]) -> None:
        """What lies before the stable ends is decided."""
        for topic, end in stable.items():
            self._firsts[topic] = [at for at in self._firsts.get(topic, []) if at >= end]
            self._bounds[topic] = max(self._bounds.get(topic, 0), end)
            if topic in self._last and not self._firsts[topic]:
                del self._last[topic]
            if self._before_snapshot.get(topic, end) < end:
                del self._before_snapshot[topic]

    def topics(self) -> list[str]:
        """Where something is undecided."""
        return [topic for topic, known in self._firsts.items() if known]

    def ours(self, stable: Mapping[str, int]) -> list[str]:
        """The topics in which the oldest open transaction is ours."""
        return [topic for topic, end in stable.items() if end in self._firsts.get(topic, ())]

    def in_doubt(self) -> list[str]:
        """The topics in which something is undecided that is older than the newest snapshot."""
        return sorted(self._before_snapshot)

    def ends(self) -> dict[str, int]:
        """Offsets that lie before whatever is written from now on."""
        return dict(self._bounds)
