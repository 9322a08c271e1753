"""The state of one unit, and how a batch changes it. Independent of Kafka, so that every runner can use it.

A unit is partition p of every input topic. It holds each join (`UnitJoin`), the key dictionary, and the vector C of
consumed offsets. Its output is a function of C alone, so its state can be rebuilt from a snapshot and a silent
replay, and the join continued from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from joiner.core.errors import NewerSnapshotError
from joiner.runtime.model import WATERMARK_COUNT, JoinSummary, UnitStopped
from joiner.runtime.task.append_times import AppendTimes
from joiner.runtime.task.decode import LEFT, RIGHT, Keys, Messages, SideInput, TopicDecoder
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.flow_control import Lead
from joiner.runtime.task.unit_join import UnitJoin
from joiner.runtime.task.unit_snapshot import VERSION, UnitSnapshot, decode, encode

if TYPE_CHECKING:
    from joiner.runtime.settings import JoinerSettings

_KEYS_MIN: Final = 10_000
"""With at most this many things, the unit does not search for idle ones."""


class Unit:
    """The state of one unit of an application: its joins, its keys, and the offsets that it has consumed."""

    def __init__(
        self, settings: JoinerSettings, unit: int, offsets: Mapping[str, int], things: Sequence[str] = ()
    ) -> None:
        """Start at ``offsets`` (by input topic) without any held records. ``things``: by key number, see `Keys`."""
        self.number = unit
        self.offsets = dict(offsets)
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._keys = Keys(unit, settings.topics.partitions, things)
        self._keys_swept_above = _KEYS_MIN
        self._appended = {topic: AppendTimes() for topic in offsets} if settings.metrics.listen else {}
        decoder = _arrow_decoder() if settings.topics.has_rows else TopicDecoder
        self._decoders = {topic: decoder(settings, topic, unit, self._keys) for topic in settings.input_topics}
        self._joins = [UnitJoin(settings, join, unit, self._keys, self._appended) for join in settings.join]

    def apply(
        self, batches: Mapping[str, Messages], ends: Mapping[str, int], *, silent: bool = False, is_part: bool = False
    ) -> Effects:
        """Join the next messages of each input topic. Return the effects.

        ``ends`` is the vector C after the batch; a position may lie beyond the last message. ``silent``: only rebuild
        the state, without effects. ``is_part``: further parts of the same batch follow, and the buffer limits are
        checked after the last part.

        Raises `UnitStopped` if the messages do not continue the state, or the buffer is full.
        """
        effects = Effects()
        inputs: dict[tuple[int, int], SideInput] = {}
        for topic, messages in batches.items():
            self._check_continuity(topic, messages, ends[topic])
            if self._appended and len(messages):
                self._appended[topic].add(messages)
            intake = self._decoders[topic].decode(messages)
            inputs |= intake.sides
            if not silent:
                effects.rejected += intake.rejected
            effects.records += intake.records
            self.counts["records"] += intake.records
            self.counts["not_selected"] += intake.not_selected
            self.counts[WATERMARK_COUNT] += intake.watermarks
            self.counts["rejected"] += len(intake.rejected)
        for join in sorted({join for join, _ in inputs}):
            left, right = (inputs.get((join, side), SideInput()) for side in (LEFT, RIGHT))
            self._count(self._joins[join].name, self._joins[join].push(left, right, None if silent else effects))
        self.offsets |= ends
        if len(self._keys) > self._keys_swept_above:
            self._forget_idle_keys()
        if not silent and not is_part:
            self._check_room()
        return effects

    def join_summaries(self) -> dict[str, JoinSummary]:
        """Return a summary of each join, by name."""
        return {join.name: join.summary() for join in self._joins}

    def held_bytes(self) -> dict[str, tuple[int, int]]:
        """Return the approximate bytes held by the left and right side of each join. Thread-safe."""
        return {join.name: join.held_bytes() for join in self._joins}

    def held(self) -> int:
        """Return the number of records held by all joins."""
        return sum(join.held() for join in self._joins)

    def leads(self) -> list[Lead]:
        """Return how far the sides of joins with two topics lead each other, for buffers that fill up."""
        return [lead for join in self._joins for lead in join.leads()]

    def snapshot(self) -> bytes:
        """Return the state as bytes."""
        self._forget_idle_keys()
        saved = UnitSnapshot(VERSION, self.offsets, self._keys.things, dict(self.counts), {}, {})
        for join in self._joins:
            join.save(saved)
        return encode(saved)

    @classmethod
    def restore(cls, settings: JoinerSettings, unit: int, data: bytes) -> Unit:
        """Restore a unit from a snapshot. Raises `UnitStopped` if it cannot be read."""
        try:
            return cls._restored(settings, unit, decode(data))
        except NewerSnapshotError as error:
            message = f"the snapshot of unit {unit} was written by a newer release ({error}); run that one"
            raise UnitStopped(message) from error
        except MemoryError:
            raise
        except Exception as error:
            # The checksum is correct, so another program may have written these bytes, and any error may occur.
            message = f"the snapshot of unit {unit} cannot be read: {error}; start over with `joiner reset`"
            raise UnitStopped(message) from error

    @classmethod
    def _restored(cls, settings: JoinerSettings, unit: int, saved: UnitSnapshot) -> Unit:
        restored = cls(settings, unit, saved.offsets, saved.things)
        restored.counts = Counter(saved.counts)
        for join in restored._joins:
            join.load(saved)
        return restored

    def _check_continuity(self, topic: str, messages: Messages, end: int) -> None:
        expected = self.offsets[topic]
        if not len(messages):
            return
        first, last = messages.first, messages.last
        if first < expected or last >= end:
            message = (
                f"unit {self.number}: a batch of {topic} covers the offsets {first} to {last}, but {expected} to "
                f"{end - 1} should follow: restart the joiner; "
                "if it happens again, this is a defect to report"
            )
            raise UnitStopped(message)

    def _count(self, join: str, found: Mapping[str, int]) -> None:
        for what, count in found.items():
            self.counts[what] += count
            self.counts[f"{join}:{what}"] += count

    def _forget_idle_keys(self) -> None:
        """Free the key numbers of things to which no join refers any longer, such as finished orders."""
        self._keys.keep(np.concatenate([join.known_keys() for join in self._joins]))
        # Seldom enough for the cost per new key to be small.
        self._keys_swept_above = max(_KEYS_MIN, 2 * len(self._keys))

    def _check_room(self) -> None:
        for join in self._joins:
            room = join.room()
            beyond = [f"{name} = {limit}" for name, (used, limit) in room.items() if used > limit]
            if not beyond:
                continue
            most = ", ".join(f"{thing} ({count})" for thing, count in join.fullest_keys(5))
            size, _ = room["buffer_bytes_max"]
            message = (
                f"unit {self.number}: join {join.name!r} holds {join.held()} records (about {size:,} bytes), more than "
                f"application.{beyond[0]}; the keys with the most records are {most}. One of their streams is silent: "
                "raise the limit and restart the joiner. To prevent it, write watermarks for that stream, or set a "
                "tolerance together with watermarks. Nothing is lost: the unit stays failed until the restart, and "
                "then continues from its last commit"
            )
            raise UnitStopped(message)


def _arrow_decoder() -> type[TopicDecoder]:
    from joiner.runtime.task.arrow.decode import ArrowDecoder  # noqa: PLC0415 - pyarrow is an extra

    return ArrowDecoder
