"""Decides which messages of one partition are delivered: results by their ids, watermarks by their times."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final

import msgspec

from broker.times import parse_time
from broker.wire.records import Watermark, is_watermark
from joiner.library.merging.leads import Leads
from joiner.library.merging.protocol import ReplicaUnion, Verdict

IDENTITY_LENGTH_MAX: Final = 64
"""Longer ids are remembered by their hash, so that an id takes a bounded amount of memory."""

_WATERMARKS_MAX: Final = 100_000

_ARROW: Final = b"\xff\xff\xff\xff"
"""How a message with many results in Arrow begins."""


class MergeError(Exception):
    """The outputs of the replicas cannot be merged any further. The message says why, and what to do."""


class _Head(msgspec.Struct, gc=False):
    id: str
    source: str | None = None


_heads: Final = msgspec.json.Decoder(_Head)
_watermarks: Final = msgspec.json.Decoder(Watermark)


class MergedPartition:
    """The union of one partition of the replicas' topics of one kind.

    ``applications``: the names under which the replicas run. Dead letters of other programs are in the same topic as
    those of replica 0. They are delivered as they are, and so is whatever has no id.
    """

    def __init__(self, union: ReplicaUnion, applications: frozenset[str], time_unit: str) -> None:
        self.union, self._applications, self._time_unit = union, applications, time_unit
        self.count = 0
        """How many messages were delivered. It numbers the next one."""
        self.leads = Leads()
        self.verdicts: Counter[tuple[str, int]] = Counter()
        """How many messages of each replica were delivered (`Verdict.DELIVER`), dropped or made to wait."""
        self._watermarks: dict[tuple[str | None, str | None], int] = {}

    def offer(self, replica: int, value: bytes | None, time_ms: int = 0) -> Verdict:
        """Decide about a message that is not a start record, with its timestamp.

        Raises `MergeError` if it holds many results.
        """
        if is_watermark(value):
            verdict = self._offer_watermark(replica, value or b"")
        elif (identity := self.identity(value)) is None:
            verdict = Verdict.DELIVER
        else:
            verdict = self.union.on_result(replica, identity, self.count)
            if verdict is Verdict.DELIVER:
                self.leads.note_first(self.count, replica, identity, time_ms)
            elif verdict is Verdict.KNOWN:
                self.leads.note_later(replica, identity, time_ms)
        self.count += verdict is Verdict.DELIVER
        self.verdicts[verdict.value, replica] += 1
        return verdict

    def identity(self, value: bytes | None) -> str | bytes | None:
        """Return what to remember of a message, or None if it has no id, or is not an output of the application."""
        if value is None or is_watermark(value):
            return None
        if value.startswith(_ARROW):
            message = (
                "a message holds many results in Arrow, which cannot be merged: set application.results to 'full' or "
                "'compact'"
            )
            raise MergeError(message)
        try:
            head = _heads.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if head.source is not None and head.source not in self._applications:
            return None
        if len(head.id) <= IDENTITY_LENGTH_MAX:
            return head.id
        return hashlib.blake2b(head.id.encode(), digest_size=16).digest()

    def _offer_watermark(self, replica: int, value: bytes) -> Verdict:
        """Deliver a watermark of a complete replica if it is higher than before.

        All results before it were delivered already, and the others are known when they come. Of an incomplete
        replica, that is not certain. A watermark that is not higher would be true as well, so that it does not matter
        if some are forgotten.
        """
        if replica not in self.union.complete:
            return Verdict.IGNORED
        watermark = _watermarks.decode(value)
        try:
            time_ns = parse_time(watermark.time, self._time_unit)
        except ValueError:
            return Verdict.DELIVER
        about = watermark.quantity, watermark.thing
        if time_ns <= self._watermarks.get(about, time_ns - 1):
            return Verdict.KNOWN
        if len(self._watermarks) >= _WATERMARKS_MAX:
            self._watermarks.clear()
        self._watermarks[about] = time_ns
        return Verdict.DELIVER
