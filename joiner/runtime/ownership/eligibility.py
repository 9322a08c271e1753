"""Checks that this runner may continue a unit: its site, settings, topics and logs."""

from __future__ import annotations

from dataclasses import dataclass

from broker.kafka.topics import TopicFacts
from joiner.runtime.kafka.clients import log_range
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.transaction import offsets_as_text
from joiner.runtime.model import RESET_RUN, Checkpoint, OnTheWay, UnitStopped
from joiner.runtime.settings import PROCESS, JoinerSettings, semantic_differences


@dataclass(frozen=True)
class Claimant:
    """The claiming runner. ``run`` is unique to each start of a process."""

    run: str
    instance: str
    site: str = PROCESS
    force: bool = False
    """Whether to claim units of other sites (``--force-claim``)."""
    back: OnTheWay | None = None
    """A release by this site that this claimant may reclaim."""

    def may_continue(self, found: Checkpoint) -> bool:
        """Return whether this runner may claim a unit: one without an owner, one of its own site, or any by force."""
        if found.run == RESET_RUN or found.site == self.site or self.force:
            return True
        return self.back is not None and found.on_the_way == self.back


class OwnedElsewhere(UnitStopped):
    """The unit belongs to another site, named in ``checkpoint``."""

    def __init__(self, text: str, checkpoint: Checkpoint) -> None:
        super().__init__(text)
        self.checkpoint = checkpoint


class TopicUnknown(UnitStopped):
    """A broker does not know an input topic: it was deleted, or the broker has just started."""


class LogShort(UnitStopped):
    """A log ends before the consumed offset: Kafka has lost records, or its leader has just been elected."""


def check_continues(
    settings: JoinerSettings, found: Checkpoint, topics: dict[str, TopicFacts], claimant: Claimant
) -> None:
    """Check that the current settings and topics match the checkpoint ``found``. Raises `UnitStopped`."""
    unit, name = found.unit, settings.application.name
    if not claimant.may_continue(found):
        owner = f"owned by a {found.site} ({found.instance})" if found.on_the_way is None else found.owner
        raise OwnedElsewhere(
            f"unit {unit} of {name!r} is {owner}: move it (`joiner move --to {claimant.site}`), wait here until "
            "it is moved (--standby), or claim it with --force-claim once its owner has stopped",
            found,
        )
    if found.fingerprint != settings.fingerprint():
        differences = semantic_differences(found.semantics, settings.semantics())
        changed = ", ".join(f"{path}: {then} then, {now} now" for path, then, now in differences) or "the semantics"
        raise UnitStopped(
            f"unit {unit} of {name!r} was begun with other settings that change its results ({changed}): "
            "give the application a new name, set them back, or start over with `joiner reset`"
        )
    check_partitions(settings, found)
    anew = [topic for topic, topic_id in found.topics.items() if topics[topic].topic_id != topic_id]
    if anew:
        raise UnitStopped(
            f"unit {unit} of {name!r}: {', '.join(anew)} was deleted and recreated, so the offsets "
            f"{offsets_as_text(found.offsets)} refer to other records: start over with `joiner reset`"
        )


def check_partitions(settings: JoinerSettings, found: Checkpoint) -> None:
    """Check that the number of units has not changed since this unit was started. Raises `UnitStopped`."""
    if found.partitions != settings.topics.partitions:
        raise UnitStopped(
            f"unit {found.unit} of {settings.application.name!r} was begun with {found.partitions} partitions, now "
            f"there are {settings.topics.partitions}: keys would change their unit; give the application a new name"
        )


def log_ranges(readers: Readers, unit: int) -> dict[str, tuple[int, int]]:
    """Return the first offset and the end of each input topic of a unit. Raises KafkaException."""
    return {topic: log_range(readers.stable, topic, unit) for topic in readers.settings.input_topics}


def check_log_range(readers: Readers, unit: int, offsets: dict[str, int]) -> None:
    """Check that the logs reach ``offsets`` and still contain all records from there on. Raises `UnitStopped`."""
    for topic, (low, high) in log_ranges(readers, unit).items():
        at = offsets[topic]
        if low > at:
            raise UnitStopped(
                f"unit {unit}: the log of {topic} begins at {low}, but recovery needs it from {at}: retention has "
                "removed what was not consumed or not yet in a snapshot; raise topics.retention, and start over "
                "with `joiner reset` (the removed input cannot be joined)"
            )
        if high < at:
            raise LogShort(
                f"unit {unit}: the log of {topic} ends at {high}, but the unit has consumed up to {at}: Kafka has lost "
                "records that it had acknowledged, or this is another cluster; check bootstrap_servers, or start "
                "over with `joiner reset`"
            )
