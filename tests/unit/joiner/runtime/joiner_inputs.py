"""Settings and messages for tests of the joiner's components."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.partitioner import partition_of
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.unit import Unit

BASE_MS = 1_554_096_460_000
DATA = "machine.data"
POWER: dict[str, Any] = {"name": "power", "left": "speed", "right": "torque", "function": "product", "output": "p"}
GAP: dict[str, Any] = {"name": "gap", "left": "command", "right": "speed", "function": "difference", "output": "g"}


def make_settings(*joins: dict[str, Any], partitions: int = 1, **sections: Any) -> JoinerSettings:
    """Return settings with the given joins (default: power)."""
    given = {"topics": {"partitions": partitions}, "join": list(joins or [POWER]), **sections}
    return JoinerSettings.model_validate(given)


class Message(NamedTuple):
    """A Kafka message: offset, append time in ms, value."""

    offset: int
    append_ms: int
    value: bytes | None


def batch(messages: Sequence[Message]) -> Messages:
    """Return the messages as columns, as a batch reader would."""
    offsets, times, values = ([one[column] for one in messages] for column in range(3))
    return Messages.of(offsets, times, values)  # type: ignore[arg-type] # the columns differ in type


def message(offset: int, content: Any, append_ms: int = BASE_MS) -> Message:
    """Return a message of the data topic. ``content`` is encoded as JSON unless it is bytes or None."""
    value = content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
    return Message(offset, append_ms, value)


def record(
    offset: int, quantity: str, time_ms: Any, result: Any = 1.0, thing: str = "a", identity: str | None = None
) -> Message:
    """Return a record as a message. Its id is derived from the offset unless given."""
    content = {"thing": thing, "quantity": quantity, "phenomenonTime": time_ms, "result": result}
    return message(offset, content | {"id": identity or f"e{offset}"})


def thing_of(unit: int, partitions: int) -> str:
    """Return a thing whose records belong to the unit."""
    return next(name for name in map(str, range(1000)) if partition_of(name.encode(), partitions) == unit)


def apply(unit: Unit, messages: Sequence[Message], *, silent: bool = False) -> Effects:
    """Join messages of the data topic, which follow those that the unit has consumed."""
    if not messages:
        return Effects()
    return unit.apply({DATA: batch(messages)}, {DATA: messages[-1].offset + 1}, silent=silent)


def lines(settings: JoinerSettings, *effects: Effects) -> list[tuple[str, bytes | None, bytes]]:
    """Return all output of some batches as (topic, key, value), in an order that does not depend on the batches."""
    found = [
        (topic, key, value)
        for effect in effects
        for topic, messages in effect.messages(settings.topics).items()
        for key, value in messages.each()
    ]
    return sorted(found, key=lambda line: (line[2], line[0]))


def changed(settings: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return a copy of unvalidated settings with one value replaced."""
    found = copy.deepcopy(settings)
    place: Any = found
    for part in path[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[part]
    place[path[-1]] = value
    return found


def fingerprint(settings: dict[str, Any]) -> str:
    """Return the fingerprint of unvalidated settings."""
    return JoinerSettings.model_validate(settings).fingerprint()
