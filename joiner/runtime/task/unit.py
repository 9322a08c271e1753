"""The state of one unit, and how a batch changes it. No Kafka here, so that every runner can use it.

A unit is partition p of every input topic. It holds one `LocalStreamBuffer` for each join, the payloads of the
records held there, the key dictionary, and the vector C of consumed offsets. What it has emitted is a function of C
alone, so its state can be rebuilt from a snapshot and a silent replay, and the join continued from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import numpy as np

from broker.wire.records import Late, Unmatched
from joiner.core.engine import LocalStreamBuffer, Step
from joiner.core.errors import NewerSnapshotError
from joiner.runtime.model import WATERMARK_COUNT, JoinSummary, UnitStopped
from joiner.runtime.task.append_times import AppendTimes
from joiner.runtime.task.decode import LEFT, RIGHT, Keys, Messages, SideInput, TopicReader
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.emit import Emitter, Pairs, Things, record_of, sides_of
from joiner.runtime.task.flow_control import RESUME_BELOW, Lead
from joiner.runtime.task.function_failures import add_up
from joiner.runtime.task.payloads import Payloads
from joiner.runtime.task.unit_snapshot import VERSION, UnitSnapshot, decode, encode, restore_rows, save_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.runtime.settings import JoinerSettings

    Ints = NDArray[np.int64]

_SideName = Literal["left", "right"]
_SIDE_NAMES: Final[tuple[_SideName, _SideName]] = ("left", "right")

_Emitted = TypeVar("_Emitted", Late, Unmatched)

_KEYS_MIN: Final = 10_000
"""Up to so many things, unused ones are not looked for."""


class Unit:
    """One unit of an application."""

    def __init__(self, settings: JoinerSettings, unit: int, offsets: Mapping[str, int]) -> None:
        """Start at ``offsets`` (by input topic) with no records held."""
        self.number = unit
        self.offsets = dict(offsets)
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._keys = Keys(unit, settings.topics.partitions)
        self._buffers = [
            LocalStreamBuffer(
                tolerance_ns=join.tolerance,
                lateness_ns=join.lateness,
                direction=join.direction,
                driver=join.driver,
                watermark_scope=join.watermark_scope,
                emit_unmatched=join.emit_unmatched,
            )
            for join in settings.join
        ]
        self._payloads = [(Payloads(), Payloads()) for _ in settings.join]
        self._outlets = [Emitter(settings, join, unit) for join in settings.join]
        self._topics = [
            (str(settings.stream(join.left)["topic"]), str(settings.stream(join.right)["topic"]))
            for join in settings.join
        ]
        self._keys_swept_above = _KEYS_MIN
        self._arrivals = {topic: AppendTimes() for topic in offsets} if settings.metrics.listen else {}
        self._make_readers()

    def apply(
        self, batches: Mapping[str, Messages], ends: Mapping[str, int], *, silent: bool = False, is_part: bool = False
    ) -> Effects:
        """Join the next messages of each input topic; returns the effects.

        ``ends`` is the vector C after the batch; a position may lie beyond the last message. ``silent``: only rebuild
        the state, without effects. ``is_part``: more of the same batch follows, and the limits of the buffer are
        checked after it. Raises `UnitStopped` if the messages do not continue the state, or the buffer is full.
        """
        effects = Effects()
        inputs: dict[tuple[int, int], SideInput] = {}
        for topic, messages in batches.items():
            self._check_continuity(topic, messages, ends[topic])
            if self._arrivals and len(messages):
                self._arrivals[topic].add(messages)
            intake = self._readers[topic].read(messages)
            inputs |= intake.sides
            if not silent:
                effects.rejected += intake.rejected
            self.counts["records"] += len(messages)
            self.counts["not_selected"] += intake.not_selected
            self.counts[WATERMARK_COUNT] += intake.watermarks
            self.counts["rejected"] += len(intake.rejected)
        for join in sorted({join for join, _ in inputs}):
            self._join(join, inputs, effects, silent=silent)
        self.offsets |= ends
        if len(self._keys) > self._keys_swept_above:
            self._forget_idle_keys()
        if not silent and not is_part:
            self._check_room()
        return effects

    def join_summaries(self) -> dict[str, JoinSummary]:
        """A summary of what each join holds, by name."""
        found = {}
        every_key = self._keys.numbers_in_use()
        for join, buffer, payloads in zip(self._settings.join, self._buffers, self._payloads, strict=True):
            left, right = (_span(frontier) for frontier in buffer.frontier_ns(every_key))
            held_left, held_right = (len(side) for side in payloads)
            found[join.name] = JoinSummary(held_left, held_right, len(self._keys), left, right)
        return found

    def held_bytes(self) -> dict[str, tuple[int, int]]:
        """Approximate bytes of memory held by the left and right side of each join. Thread-safe."""
        return {
            join.name: (left.size, right.size)
            for join, (left, right) in zip(self._settings.join, self._payloads, strict=True)
        }

    def held(self) -> int:
        """The number of records held by all joins."""
        return sum(len(buffer) for buffer in self._buffers)

    def leads(self) -> list[Lead]:
        """How far the sides of joins with two topics lead each other, for buffers that fill up."""
        found = []
        for join, topics in enumerate(self._topics):
            fill = self._fill(join)
            if topics[LEFT] == topics[RIGHT] or fill < RESUME_BELOW:
                continue
            held, latest_ns = len(self._buffers[join]), self._latest_ns(join)
            for side, payloads in enumerate(self._payloads[join]):
                beyond = payloads.count_later(latest_ns[1 - side])
                found.append(Lead(topics[side], topics[1 - side], fill, beyond / held))
        return found

    def _latest_ns(self, join: int) -> tuple[int, int]:
        """The largest time (ns) the left and the right side have reached, by a record of any key or a watermark."""
        frontiers = self._buffers[join].frontier_ns(self._keys.numbers_in_use())
        lefts, rights = (
            int(frontier.max(initial=np.iinfo(np.int64).min)) + lateness_ns
            for frontier, lateness_ns in zip(frontiers, self._settings.join[join].lateness, strict=True)
        )
        return lefts, rights

    def snapshot(self) -> bytes:
        """The state as bytes."""
        self._forget_idle_keys()
        time_unit = self._settings.events.time_unit
        buffers, rows = {}, {}
        for join, buffer, payloads in zip(self._settings.join, self._buffers, self._payloads, strict=True):
            buffers[join.name] = buffer.snapshot()
            for name, side in zip(_SIDE_NAMES, payloads, strict=True):
                rows[f"{join.name}.{name}"] = save_rows(side.rows(), time_unit)
        return encode(UnitSnapshot(VERSION, self.offsets, self._keys.things, dict(self.counts), buffers, rows))

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
            # The checksum was right, so it was written like this, perhaps by another program: anything may be wrong.
            message = f"the snapshot of unit {unit} cannot be read: {error}; `joiner reset` starts the application anew"
            raise UnitStopped(message) from error

    @classmethod
    def _restored(cls, settings: JoinerSettings, unit: int, saved: UnitSnapshot) -> Unit:
        buffers = {name: LocalStreamBuffer.restore(buffer) for name, buffer in saved.buffers.items()}
        rows = {name: restore_rows(one, settings.events.time_unit) for name, one in saved.rows.items()}
        restored = cls(settings, unit, saved.offsets)
        restored.counts = Counter(saved.counts)
        restored._keys = Keys(unit, settings.topics.partitions, saved.things)
        restored._make_readers()
        restored._buffers = [buffers[join.name] for join in settings.join]
        restored._payloads = [
            (Payloads(rows[f"{join.name}.left"]), Payloads(rows[f"{join.name}.right"])) for join in settings.join
        ]
        return restored

    def _make_readers(self) -> None:
        self._readers = {
            topic: TopicReader(self._settings, topic, self.number, self._keys) for topic in self._settings.input_topics
        }

    def _check_continuity(self, topic: str, messages: Messages, end: int) -> None:
        expected = self.offsets[topic]
        if not len(messages):
            return
        first, last = messages.offset[0], messages.offset[-1]
        if first < expected or last >= end:
            message = (
                f"unit {self.number}: a batch of {topic} covers the offsets {first} to {last}, and {expected} to "
                f"{end - 1} should follow: restart the joiner; "
                "if it happens again, this is a defect to report"
            )
            raise UnitStopped(message)

    def _join(self, join: int, inputs: Mapping[tuple[int, int], SideInput], effects: Effects, *, silent: bool) -> None:
        left, right = (inputs.get((join, side), SideInput()) for side in (LEFT, RIGHT))
        for payloads, side in zip(self._payloads[join], (left, right), strict=True):
            payloads.add(side.rows())
        step = self._buffers[join].push(
            left=left.columns(),
            right=right.columns(),
            left_watermarks=left.watermarks(),
            right_watermarks=right.watermarks(),
        )
        self._count(self._settings.join[join].name, step)
        if not silent:
            if len(step.left_seq):
                joined, failed = self._outlets[join].results(self._pairs(join, step))
                effects.joined += joined
                effects.rejected += failed
                if (failures := self._outlets[join].failures) is not None:
                    add_up(effects.failed_pairs, {self._settings.join[join].name: failures})
                if self._arrivals:
                    self._note_arrivals(join, step, effects)
            self._emit_records(join, step, effects)
        self._forget(join, step)

    def _things_of(self, keys: Ints) -> Things:
        things = self._keys.things
        is_there = np.zeros(len(things), dtype=bool)
        is_there[keys] = True
        there = is_there.nonzero()[0]
        number = np.empty(len(things), dtype=np.int64)
        number[there] = np.arange(len(there))
        return Things([things[key] for key in there.tolist()], number.take(keys))

    def _count(self, join: str, step: Step) -> None:
        found = {
            "pairs": len(step.left_seq),
            "late": len(step.left_late_seq) + len(step.right_late_seq),
            "duplicates": len(step.left_duplicate_seq) + len(step.right_duplicate_seq),
            "unmatched": len(step.left_unmatched_seq) + len(step.right_unmatched_seq),
        }
        for what, count in found.items():
            self.counts[what] += count
            self.counts[f"{join}:{what}"] += count

    def _pairs(self, join: int, step: Step) -> Pairs:
        left, right = self._payloads[join]
        lefts, rights = left.find(step.left_seq), right.find(step.right_seq)
        return Pairs(lefts, rights, self._things_of(lefts.key), step.left_ordinal, step.right_ordinal)

    def _note_arrivals(self, join: int, step: Step, effects: Effects) -> None:
        left, right = (
            self._arrivals[topic].of(seq)
            for topic, seq in zip(self._topics[join], (step.left_seq, step.right_seq), strict=True)
        )
        times_ms, pairs = np.unique(np.maximum(left, right), return_counts=True)
        effects.appended_ms.update(dict(zip(times_ms.tolist(), pairs.tolist(), strict=True)))

    def _emit_records(self, join: int, step: Step, effects: Effects) -> None:
        start = f"{self._settings.join[join].name}:{self.number}:"
        late, unmatched = effects.late, effects.unmatched
        late += self._emitted(Late, join, LEFT, step.left_late_seq, f"{start}left:%d")
        late += self._emitted(Late, join, RIGHT, step.right_late_seq, f"{start}right:%d")
        unmatched += self._emitted(Unmatched, join, LEFT, step.left_unmatched_seq, f"{start}%d:")
        unmatched += self._emitted(Unmatched, join, RIGHT, step.right_unmatched_seq, f"{start}:%d")

    def _emitted(self, kind: type[_Emitted], join: int, side: int, emitted_seq: Ints, identity: str) -> list[_Emitted]:
        if not len(emitted_seq):
            return []
        options = self._settings.join[join]
        topic = self._topics[join][side]
        rows = self._payloads[join][side].find(emitted_seq)
        return [
            kind(
                identity % seq,
                self._settings.application.name,
                options.name,
                _SIDE_NAMES[side],
                topic,
                self.number,
                seq,
                record_of(thing, shown),
            )
            for seq, thing, shown in zip(
                emitted_seq.tolist(), self._things_of(rows.key).each(), sides_of(rows), strict=True
            )
        ]

    def _forget(self, join: int, step: Step) -> None:
        left, right = self._payloads[join]
        for side, groups in (
            (left, (step.left_late_seq, step.left_duplicate_seq, step.left_released_seq)),
            (right, (step.right_late_seq, step.right_duplicate_seq, step.right_released_seq)),
        ):
            for gone in groups:
                if len(gone):
                    side.remove(gone)

    def _forget_idle_keys(self) -> None:
        """Free the key numbers of things no join knows of any more, such as finished orders."""
        self._keys.keep(np.concatenate([buffer.known_keys() for buffer in self._buffers]))
        # Rarely enough that the cost per new key is small.
        self._keys_swept_above = max(_KEYS_MIN, 2 * len(self._keys))

    def _fill(self, join: int) -> float:
        """The used share of a join's buffer, by its nearest limit: 1 is full."""
        return max(used / limit for used, limit in self._room(join).values())

    def _room(self, join: int) -> dict[str, tuple[int, int]]:
        """What a join holds and may hold at most, by the name of the limit's setting."""
        limits = self._settings.application
        return {
            "buffer_records_max": (len(self._buffers[join]), limits.buffer_records_max),
            "buffer_bytes_max": (sum(side.size for side in self._payloads[join]), limits.buffer_bytes_max),
        }

    def _check_room(self) -> None:
        for number, (join, buffer) in enumerate(zip(self._settings.join, self._buffers, strict=True)):
            room = self._room(number)
            beyond = [f"{name} = {limit}" for name, (used, limit) in room.items() if used > limit]
            if not beyond:
                continue
            keys, counts = buffer.held_by_key()
            things = self._keys.things
            most = ", ".join(f"{things[keys[at]]} ({counts[at]})" for at in np.argsort(-counts)[:5].tolist())
            size, _ = room["buffer_bytes_max"]
            message = (
                f"unit {self.number}: join {join.name!r} holds {len(buffer)} records (about {size:,} bytes), more than "
                f"application.{beyond[0]}; the keys that hold most are {most}. One of their streams "
                "is silent: raise the limit, write a watermark for it, or set a tolerance together with watermarks. "
                "Nothing is lost: the unit continues from its last commit."
            )
            raise UnitStopped(message)


def _span(frontier: Ints) -> tuple[int, int] | None:
    known = frontier[frontier != np.iinfo(np.int64).min]
    return (int(known.min()), int(known.max())) if len(known) else None
