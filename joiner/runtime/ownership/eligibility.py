"""Checks whether this runner may continue a unit, given the unit's site, settings, topics and logs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker.kafka.topics import TopicFacts
from joiner.runtime.kafka.clients import log_range
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.transaction import offsets_as_text
from joiner.runtime.model import RESET_RUN, Checkpoint, OnTheWay, UnitStopped, semantic_differences
from joiner.runtime.settings import PROCESS, JoinerSettings


@dataclass(frozen=True)
class Claimant:
    """The runner that claims a unit. ``run``: a new id generated each time the process starts."""

    run: str
    instance: str
    site: str = PROCESS
    force: bool = False
    """Whether to claim units of other sites (``--force-claim``)."""
    back: OnTheWay | None = None
    """The move for which this site released the unit, if this claimant is to reclaim it."""

    def may_continue(self, found: Checkpoint) -> bool:
        """Return whether this runner may claim the unit.

        It may do so after a reset, if the unit belongs to its own site, with ``force``, or to reclaim the unit
        (``back``).
        """
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


class FoundationAwaited(UnitStopped):
    """Replica 0 has no state of the unit from which another replica could begin it yet (see `foundation`)."""


class LogShort(UnitStopped):
    """An input log ends before the consumed offset: Kafka has lost records, or a new leader has just been elected."""


def check_topics_exist(settings: JoinerSettings, unit: int, topics: dict[str, TopicFacts]) -> None:
    """Check that all input topics are in ``topics``, those known to a broker. Raises `TopicUnknown` if not."""
    absent = [topic for topic in settings.input_topics if topic not in topics]
    if absent:
        raise TopicUnknown(
            f"unit {unit}: {', '.join(absent)} no longer exists: restore it, or run "
            f"{settings.application.command('reset')} and then restart the joiner, which creates the topic and starts "
            "over"
        )


def check_continues(
    settings: JoinerSettings, found: Checkpoint, topics: dict[str, TopicFacts], claimant: Claimant
) -> None:
    """Check that the claimant, settings and topics match the checkpoint ``found``. Raises `UnitStopped` if not."""
    unit, name = found.unit, settings.application.name
    if not claimant.may_continue(found):
        raise OwnedElsewhere(
            f"unit {unit} of {name!r} is {ownership_of(found)}: {_ways_here(settings, found, claimant)}", found
        )
    if found.fingerprint != settings.fingerprint():
        differences = semantic_differences(found.semantics, settings.semantics())
        changed = ", ".join(f"{path}: {then} then, {now} now" for path, then, now in differences) or "the semantics"
        raise UnitStopped(
            f"unit {unit} of {name!r} was started with different values for settings that affect its results "
            f"({changed}): give the application a new name, restore the settings, or start over with "
            f"{settings.application.command('reset')}"
        )
    check_partitions(settings, found)
    anew = [topic for topic, topic_id in found.topics.items() if topics[topic].topic_id != topic_id]
    if anew:
        raise UnitStopped(
            f"unit {unit} of {name!r}: {', '.join(anew)} was deleted and recreated, so the offsets "
            f"{offsets_as_text(found.offsets)} no longer refer to the same records: start over with "
            f"{settings.application.command('reset')}"
        )


def check_site(settings: JoinerSettings, found: Checkpoint, claimant: Claimant) -> None:
    """Check that a unit belongs to the claimant's site, or to none after a reset. Raises `OwnedElsewhere` if not."""
    if not replace(claimant, force=False, back=None).may_continue(found):
        raise OwnedElsewhere(f"unit {found.unit} of {settings.application.name!r} is {ownership_of(found)}", found)


def _ways_here(settings: JoinerSettings, found: Checkpoint, claimant: Claimant) -> str:
    """Return the part of an error message that says how to get a unit that the claimant may not claim."""
    if found.on_the_way is not None:
        return (
            f"start a joiner with --site {found.site} to claim it, wait for it to be moved here (--standby), or claim "
            "it with --force-claim"
        )
    return (
        f"move it ({settings.application.command(f'move --to {claimant.site}')}), wait for it to be moved here "
        "(--standby), or claim it with --force-claim once its owner has stopped"
    )


def ownership_of(found: Checkpoint, *, with_run: bool = False) -> str:
    """Return who owns a unit, as a phrase that can follow "the unit is". ``with_run``: also name the owner's run."""
    if found.run == RESET_RUN:
        return "without an owner since a reset"
    if (way := found.on_the_way) is not None:
        return f"on its way from {way.source} to {found.site}"
    return f"owned by {found.owner}" + (f" (run {found.run})" if with_run else "")


def check_partitions(settings: JoinerSettings, found: Checkpoint) -> None:
    """Check that the number of units has not changed since this unit was started. Raises `UnitStopped` if it has."""
    if found.partitions != settings.topics.partitions:
        raise UnitStopped(
            f"unit {found.unit} of {settings.application.name!r} was started with {found.partitions} partitions, but "
            f"now there are {settings.topics.partitions}: keys would move to other units; give the application a new "
            "name"
        )


def log_ranges(readers: Readers, unit: int) -> dict[str, tuple[int, int]]:
    """Return the start and end offsets of the unit's input logs, by topic.

    Raises KafkaException if a request fails.
    """
    return {topic: log_range(readers.stable, topic, unit) for topic in readers.settings.input_topics}


def check_log_range(readers: Readers, unit: int, offsets: dict[str, int]) -> None:
    """Check that the input logs reach ``offsets`` and hold all records after them. Raises `UnitStopped` if not."""
    reset = readers.settings.application.command("reset")
    for topic, (low, high) in log_ranges(readers, unit).items():
        at = offsets[topic]
        if low > at:
            raise UnitStopped(
                f"unit {unit}: the log of {topic} begins at {low}, but recovery needs it from {at}: retention has "
                "removed input that was not yet consumed or not yet in a snapshot; raise topics.retention, and start "
                f"over with {reset} (the removed input cannot be joined)"
            )
        if high < at:
            raise LogShort(
                f"unit {unit}: the log of {topic} ends at {high}, but the unit has consumed up to {at}: Kafka has lost "
                "records that it had acknowledged, or this is a different cluster; check bootstrap_servers, or start "
                f"over with {reset}"
            )
