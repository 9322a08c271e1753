"""The state of one unit, and how a batch changes it. Independent of Kafka.

A unit is partition p of every input topic. It holds its operators (`UnitJoin`, `UnitAlign`, `UnitGrid`), the key
dictionary, and the vector C of consumed offsets. Its output is a function of C alone, so its state can be rebuilt from
a snapshot and a silent replay, and continued from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from joiner.core.compiled import compile_declared
from joiner.core.errors import NewerSnapshotError
from joiner.runtime.model import WATERMARK_COUNT, AlignSummary, JoinSummary, UnitStopped
from joiner.runtime.task.append_times import AppendTimes
from joiner.runtime.task.decoding.factory import make_decoder
from joiner.runtime.task.decoding.intake import SideInput
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.flow_control import Lead
from joiner.runtime.task.operators.output_watermarks import OutputWatermarks
from joiner.runtime.task.operators.unit_align import UnitAlign
from joiner.runtime.task.operators.unit_grid import UnitGrid
from joiner.runtime.task.operators.unit_join import UnitJoin
from joiner.runtime.task.unit_snapshot import VERSION, UnitSnapshot, decode, encode

if TYPE_CHECKING:
    from joiner.mapping.framing import Schemas
    from joiner.operators import AlignSettings
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.operators.held_by_key import HeldByKey

_KEYS_MIN: Final = 10_000
"""A unit with at most this many things looks for idle ones only when it takes a snapshot."""


def load_loops(settings: JoinerSettings) -> None:
    """Load the compiled loops of the operators. Without this, the first unit of a process would wait for them."""
    compile_declared("joiner.core")
    if settings.align:
        compile_declared("joiner.alignment")


class Unit:
    """The state of one unit of an application: its operators, its keys, and the offsets that it has consumed."""

    def __init__(
        self,
        settings: JoinerSettings,
        unit: int,
        offsets: Mapping[str, int],
        things: Sequence[str] = (),
        schemas: Schemas | None = None,
    ) -> None:
        """Start at ``offsets`` (by input topic) without any held records. ``things``: by key number, see `Keys`.

        ``schemas``: knows the schemas of messages that name theirs.
        """
        self.number = unit
        self.offsets = dict(offsets)
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._keys = Keys(unit, settings.topics.partitions, things)
        self._keys_swept_above = _KEYS_MIN
        self._appended = {topic: AppendTimes() for topic in offsets} if settings.metrics.listen else {}
        self._decoders = {
            topic: make_decoder(settings, topic, unit, self._keys, schemas) for topic in settings.input_topics
        }
        shared = unit, self._keys, self._appended
        self._joins = [UnitJoin(settings, join, *shared) for join in settings.join]
        self._aligns = [_unit_align(settings, align, *shared) for align in settings.align]
        # In the order of `JoinerSettings.operators`, whose numbers the decoders use.
        self._operators = [*self._joins, *self._aligns]
        self.output_watermarks = OutputWatermarks(settings, self._keys, self._operators)
        self._stream_counts = [len(operator.streams) for operator in settings.operators]

    def apply(
        self, batches: Mapping[str, Messages], ends: Mapping[str, int], *, silent: bool = False, is_part: bool = False
    ) -> Effects:
        """Process the next messages from each input topic. Return the effects.

        ``ends``: the vector C after the batch; a position may be beyond the last message. ``silent``: only rebuild the
        state, without output and without checking the limits of the buffers. ``is_part``: further parts of the same
        batch follow, and the limits are checked after the last one.

        Raises `UnitStopped` if the messages do not continue the state, if a buffer exceeds a limit, or if a schema is
        not available; and then the unit can no longer be used.
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
        for number in sorted({number for number, _ in inputs}):
            operator = self._operators[number]
            sides = [inputs.get((number, stream), SideInput()) for stream in range(self._stream_counts[number])]
            self._count(operator.name, operator.push(sides, None if silent else effects))
        self.offsets |= ends
        if len(self._keys) > self._keys_swept_above:
            self._forget_idle_keys()
        if not silent and not is_part:
            self._check_room()
        return effects

    def join_summaries(self) -> dict[str, JoinSummary]:
        """Return a summary of each join, by name."""
        return {join.name: join.summary() for join in self._joins}

    def align_summaries(self) -> dict[str, AlignSummary]:
        """Return a summary of each align, by name."""
        return {align.name: align.summary() for align in self._aligns}

    def held_bytes(self) -> dict[str, dict[str, int]]:
        """Return the approximate bytes held by each operator, by its name and by stream. Thread-safe."""
        return {operator.name: operator.held_bytes() for operator in self._operators}

    def held(self) -> int:
        """Return the number of records held by all operators."""
        return sum(operator.held() for operator in self._operators)

    def held_by_key(self) -> dict[str, HeldByKey]:
        """Return what each operator holds for each thing, by the operator's name."""
        return {operator.name: operator.held_by_key() for operator in self._operators}

    def leads(self) -> list[Lead]:
        """Return, for buffers that are filling up, how far streams are ahead of streams from other topics."""
        return [lead for operator in self._operators for lead in operator.leads()]

    def snapshot(self) -> bytes:
        """Return the state as bytes."""
        self._forget_idle_keys()
        saved = UnitSnapshot(VERSION, self.offsets, self._keys.things, dict(self.counts), {}, {})
        for operator in self._operators:
            operator.save(saved)
        return encode(saved)

    @classmethod
    def restore(cls, settings: JoinerSettings, unit: int, data: bytes, schemas: Schemas | None = None) -> Unit:
        """Restore a unit from a snapshot. Raises `UnitStopped` if the snapshot cannot be read.

        ``schemas``: see the constructor.
        """
        try:
            return cls._restored(settings, unit, decode(data), schemas)
        except NewerSnapshotError as error:
            message = f"the snapshot of unit {unit} was written by a newer release ({error}); run that release"
            raise UnitStopped(message) from error
        except MemoryError:
            raise
        except Exception as error:
            # The checksum is correct, so another program may have written these bytes, and any error may occur.
            reset = settings.application.command("reset")
            message = f"the snapshot of unit {unit} cannot be read: {error}; start over with {reset}"
            raise UnitStopped(message) from error

    @classmethod
    def _restored(
        cls, settings: JoinerSettings, unit: int, saved: UnitSnapshot, schemas: Schemas | None = None
    ) -> Unit:
        restored = cls(settings, unit, saved.offsets, saved.things, schemas)
        restored.counts = Counter(saved.counts)
        for operator in restored._operators:
            operator.load(saved)
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
                "if this happens again, report it as a bug"
            )
            raise UnitStopped(message)

    def _count(self, operator: str, found: Mapping[str, int]) -> None:
        for what, count in found.items():
            self.counts[what] += count
            self.counts[f"{operator}:{what}"] += count

    def _forget_idle_keys(self) -> None:
        """Free the key numbers of things that no operator refers to any more, such as finished orders."""
        known = np.concatenate([operator.known_keys() for operator in self._operators])
        self._keys.keep(known)
        self.output_watermarks.keep(known)
        # Do this rarely, so that the cost per new key is small.
        self._keys_swept_above = max(_KEYS_MIN, 2 * len(self._keys))

    def _check_room(self) -> None:
        for operator in self._operators:
            room = operator.room()
            beyond = [f"{name} = {limit}" for name, (used, limit) in room.items() if used > limit]
            if not beyond:
                continue
            most = ", ".join(f"{thing} ({count})" for thing, count in operator.fullest_keys(5))
            size, _ = room["buffer_bytes_max"]
            what = f"{'align' if operator in self._aligns else 'join'} {operator.name!r}"
            message = (
                f"unit {self.number}: {what} holds {operator.held()} {operator.holds} (about {size:,} bytes), more "
                f"than application.{beyond[0]}; the keys with the most of them are {most}. Usually, one of "
                "their streams is silent: raise the limit and restart the joiner. To prevent this error, write "
                "watermarks for that stream, or set a tolerance together with watermarks. Nothing is lost: the unit "
                "stays failed until the restart, and then continues from its last commit"
            )
            raise UnitStopped(message)


def _unit_align(
    settings: JoinerSettings, align: AlignSettings, unit: int, keys: Keys, appended: Mapping[str, AppendTimes]
) -> UnitAlign | UnitGrid:
    shared = unit, keys, appended
    return UnitAlign(settings, align, *shared) if align.grid is None else UnitGrid(settings, align, align.grid, *shared)
