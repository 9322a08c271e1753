"""Builds the state of a unit at its last checkpoint, as a standby does, but without claiming anything.

It writes nothing, joins no consumer group, and reads only committed records. It holds the unit's two snapshots in
memory, and the state restored from the newest one; see `STATE_BYTES_MAX`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from broker.kafka.topics import topic_facts
from control.facts.lookup.one_at_a_time import DeadlinePassed, Unavailable
from joiner.runtime.kafka.batches.registry import schemas_of
from joiner.runtime.kafka.clients import log_range, make_admin, read_to_end
from joiner.runtime.kafka.readers import ClaimCancelled, Readers
from joiner.runtime.model import StateLog, UnitStopped, checkpoint_key, manifest_key, semantic_differences
from joiner.runtime.ownership.restore import build_state
from joiner.runtime.task.unit import Unit

if TYPE_CHECKING:
    from control.facts.lookup.one_at_a_time import Deadline
    from joiner.runtime.model import Checkpoint
from joiner.runtime.settings import JoinerSettings

STATE_BYTES_MAX: Final = 256 * 1024 * 1024
"""The maximum number of bytes read for a unit's state, including both of its snapshots."""

REPLAYED_MAX: Final = 200_000
"""If more messages than this follow the newest snapshot (fewer, if each holds many records), they are not replayed."""

_REPLAY_SHARE: Final = 0.7
"""The share of a unit's time that its replay may take. After that, its snapshot is restored instead."""

_ATTEMPTS: Final = 2
"""The number of attempts. While the state topic is being read, a new snapshot may replace an old one."""

_TIMEOUT_S: Final = 5.0
_DIFFERENCES_SHOWN: Final = 3


class AsOf(msgspec.Struct, frozen=True):
    """The offsets C consumed in the state shown, by input topic.

    ``source``: the unit's last ``checkpoint``, or its last ``snapshot``, which is older. ``at_ms``: when Kafka
    appended it, since the epoch. ``why``: why the last checkpoint is not shown, if it is not.
    """

    source: Literal["checkpoint", "snapshot"]
    offsets: dict[str, int]
    at_ms: int
    why: str = ""


class UnitState(NamedTuple):
    """A unit as it was at a checkpoint or a snapshot."""

    unit: Unit
    as_of: AsOf


class _Log(NamedTuple):
    """The contents of a unit's partition of the state topic. ``at_ms``: when each key's last record was appended."""

    state: StateLog
    at_ms: dict[str, int]


def read_topic_ids(settings: JoinerSettings) -> dict[str, str]:
    """Return the ids of the application's input topics, result topic and state topic, except those that do not exist.

    Raises KafkaException if Kafka does not answer.
    """
    names = [*settings.input_topics, settings.topics.out, settings.state_topic]
    return {name: found.topic_id for name, found in topic_facts(make_admin(settings.kafka), names, _TIMEOUT_S).items()}


def read_unit(readers: Readers, number: int, topic_ids: Mapping[str, str], deadline: Deadline) -> UnitState | None:
    """Return the state of a unit, or None if it has never run. ``topic_ids``: see `read_topic_ids`.

    Raises `Unavailable` if the state cannot be built here, `DeadlinePassed`, and KafkaException.
    """
    # A request to an unresponsive broker may have taken longer than all units together are allowed.
    deadline.check()
    if readers.settings.state_topic not in topic_ids:
        return None
    for attempt in range(_ATTEMPTS):
        readers.is_over = deadline.is_over
        try:
            return _read_unit(readers, number, topic_ids, deadline)
        except ClaimCancelled:
            raise DeadlinePassed from None
        except UnitStopped as error:
            if attempt + 1 == _ATTEMPTS:
                raise Unavailable(str(error)) from error
    return None


def _read_unit(readers: Readers, number: int, topic_ids: Mapping[str, str], deadline: Deadline) -> UnitState | None:
    log = _read_log(readers, number)
    checkpoint = log.state.checkpoint()
    if checkpoint is None:
        return None
    check_same(readers.settings, checkpoint, topic_ids)
    return _build(readers, log, checkpoint, deadline)


def _read_log(readers: Readers, number: int) -> _Log:
    """Read a unit's partition of the state topic. Keep the last value of each key, as `StateLog` does."""
    topic = readers.settings.state_topic
    low, end = log_range(readers.log, topic, number)
    values: dict[str, bytes] = {}
    at_ms: dict[str, int] = {}
    size = 0
    for message in read_to_end(readers.log, readers.clock, topic, number, low, end):
        readers.check()
        key, value = (message.key() or b"").decode(errors="replace"), message.value()
        size += len(value or b"") - len(values.pop(key, b""))
        if value is not None:
            values[key], at_ms[key] = value, int(message.timestamp()[1])
        if size > STATE_BYTES_MAX:
            raise Unavailable(
                f"the snapshots of unit {number} have more than {STATE_BYTES_MAX // 1024**2} MB, too much to read "
                "here; `joiner status` shows how many records the unit holds"
            )
    return _Log(StateLog(number, values, end), at_ms)


def check_same(settings: JoinerSettings, checkpoint: Checkpoint, topic_ids: Mapping[str, str]) -> None:
    """Raise `Unavailable` if the unit's settings or topics differ from those this service knows."""
    if checkpoint.fingerprint != settings.fingerprint() or checkpoint.partitions != settings.topics.partitions:
        found = semantic_differences(checkpoint.semantics, settings.semantics())[:_DIFFERENCES_SHOWN]
        what = "; ".join(f"{path} is {there} there and {here} here" for path, there, here in found)
        raise Unavailable(
            f"unit {checkpoint.unit} runs with different settings from this service ({what or 'topics.partitions'}): "
            "start the service with the joiner's settings file"
        )
    anew = [topic for topic, topic_id in checkpoint.topics.items() if topic_ids.get(topic) != topic_id]
    if anew:
        raise Unavailable(
            f"unit {checkpoint.unit}: {', '.join(anew)} was deleted or recreated, so the state cannot be built"
        )


def _build(readers: Readers, log: _Log, checkpoint: Checkpoint, deadline: Deadline) -> UnitState:
    newest = next(iter(log.state.manifests()), None)
    begin = checkpoint.start if newest is None else newest.offsets
    behind = sum(max(0, end - begin.get(topic, end)) for topic, end in checkpoint.offsets.items())
    why = f"{behind:,} messages follow the snapshot, too many to replay here"
    if behind <= readers.settings.messages_max(REPLAYED_MAX):
        readers.is_over = deadline.part(_REPLAY_SHARE).is_over
        try:
            built = build_state(checkpoint, log.state, readers, level=logging.DEBUG)
        except ClaimCancelled:
            deadline.check()
            why = "replaying the messages that follow the snapshot took too long"
        except UnitStopped as error:
            why = str(error)
        else:
            at_ms = log.at_ms[checkpoint_key(checkpoint.unit)]
            return UnitState(built, AsOf("checkpoint", built.offsets, at_ms))
        finally:
            readers.is_over = deadline.is_over
    if newest is None:
        raise Unavailable(f"unit {checkpoint.unit} has no snapshot yet: {why}")
    is_ahead = any(at > checkpoint.offsets.get(topic, -1) for topic, at in newest.offsets.items())
    if is_ahead or newest.fingerprint != checkpoint.fingerprint:
        raise Unavailable(why)
    saved = log.state.snapshot(newest, readers.settings.application.command("reset"))
    restored = Unit.restore(readers.settings, checkpoint.unit, saved, schemas_of(readers.settings))
    at_ms = log.at_ms[manifest_key(checkpoint.unit, newest.slot)]
    return UnitState(restored, AsOf("snapshot", restored.offsets, at_ms, why))
