"""``joiner reset``: replaces each unit's checkpoint with an initial one, so that the application starts over.

The copies of topics that are repartitioned are deleted, and made again. Otherwise, they would remain those of the past:
copying would not begin at ``application.start``, and copies of a topic that was recreated would be among them.
"""

from __future__ import annotations

from contextlib import closing

import msgspec
from confluent_kafka import Consumer

from broker.kafka.topics import TopicFacts, ensure_topics, topic_facts
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.clients import make_admin
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.topics import application_topics
from joiner.runtime.kafka.transaction import Aborted, Fenced, UnitTransactions, unsubscribed_consumer
from joiner.runtime.model import RESET_RUN, UnitStopped
from joiner.runtime.ownership.claim import first_checkpoint, group_offsets
from joiner.runtime.ownership.dangling import fence_partitions
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.foundation import Foundation, read_foundation
from joiner.runtime.repartition.deletion import delete_copies, existing_copies
from joiner.runtime.repartition.prior import RepartitionError
from joiner.runtime.settings import JoinerSettings


def reset(settings: JoinerSettings, clock: Clock, *, confirmed: bool) -> int:
    """Delete the state of all units and all copies, and fence processes that are still running. Return the exit status.

    A replica other than 0 is founded anew (see `foundation`). Without ``confirmed``, only print what this would do; the
    status is then 2. It is 1 if a unit could not be reset, or if a process still repartitions, otherwise 0. Raises
    `TopicError` and KafkaException.
    """
    application = settings.application.name
    admin = make_admin(settings.kafka)
    units = range(settings.topics.partitions)
    known = settings.state_topic in topic_facts(admin, [settings.state_topic])
    copies = existing_copies(admin, settings)
    if not known and not copies and not any(group_offsets(settings, unit) for unit in units):
        print(f"application {application!r} has never run: nothing to reset")
        return 0
    if not confirmed:
        print(
            f"This deletes the progress of application {application!r} in all {settings.topics.partitions} units. On "
            f"its next start, it begins {_beginning(settings, copied=bool(copies))}. Results already in the topic "
            f"{settings.topics.out} are kept. {_what_of(copies)}{_before(settings)}"
            "Stop its processes first, then repeat the command with --yes."
        )
        return 2
    try:
        for topic in delete_copies(admin, settings, clock):
            print(f"{topic}: deleted")
    except RepartitionError as error:
        print(f"nothing was reset: {error}")
        return 1
    topics = ensure_topics(admin, application_topics(settings))
    claimant = Claimant(RESET_RUN, settings.application.instance)
    group_metadata_consumer = unsubscribed_consumer(settings)
    are_reset = [_reset_unit(settings, unit, topics, claimant, group_metadata_consumer, clock) for unit in units]
    if (count := settings.application.replicas) > 1 and not settings.application.replica:
        others = " and ".join(f"`joiner reset --replica {number} --yes`" for number in range(1, count))
        print(f"now reset the other replicas, whose results may differ otherwise: {others}")
    return 0 if all(are_reset) else 1


def _reset_unit(
    settings: JoinerSettings,
    unit: int,
    topics: dict[str, TopicFacts],
    claimant: Claimant,
    group_metadata_consumer: Consumer,
    clock: Clock,
) -> bool:
    """Reset a unit, print what became of it, and return whether it was reset."""
    transactions = UnitTransactions(settings, unit, group_metadata_consumer, clock)
    try:
        transactions.init()
        checkpoint, snapshot = _foundation(settings, unit, topics, claimant, clock)
        with closing(Readers(settings, clock)) as readers:
            result_ends = fence_partitions(readers, unit, transactions, checkpoint)
            state = read_state(readers, unit)
        transactions.begin_anew(state, msgspec.structs.replace(checkpoint, result_ends=result_ends), snapshot)
    except Fenced:
        print(f"unit {unit}: not reset, because a running process has claimed it; stop the process and repeat")
    except Aborted as error:
        print(f"unit {unit}: not reset ({error}); repeat the command")
    except UnitStopped as error:  # of replica 0
        print(f"not reset: {error}")
    else:
        print(f"unit {unit}: reset, {len(state.values)} state records deleted")
        return True
    return False


def _what_of(copies: list[str]) -> str:
    if not copies:
        return ""
    return f"The copies in {', '.join(copies)} are deleted, and made again from the originals that still exist. "


def _before(settings: JoinerSettings) -> str:
    """Return what to do before, because otherwise a replica with the former settings would decide what is merged."""
    if settings.application.replicas == 1:
        return ""
    return (
        "If settings that affect results have changed and the replicas are merged, first go back to one replica, as "
        "docs/replicas.md describes: otherwise, results that only the new settings yield may be missing in the merged "
        "topics. They may also be missing if no other replica is complete in all partitions when this one is reset. "
        "Look at `lsb_joiner_merge_complete` and, after an outage of Kafka, at whether another one has committed in "
        "all of them since. "
    )


def _beginning(settings: JoinerSettings, *, copied: bool) -> str:
    """Return where a reset application begins, as the end of a sentence. ``copied``: whether its input is."""
    if settings.application.replica:
        return "with the newest snapshot of replica 0, and writes the results that follow it again, with the same ids"
    start = settings.application.start
    # The ids contain the offsets of the input, which are others in new copies.
    ids = "the same ids, except for those from copies" if copied else "the same ids"
    again = f" and writes all results again, with {ids}" if start == "earliest" else ""
    return f"at application.start = {start!r}{again}"


def _foundation(
    settings: JoinerSettings, unit: int, topics: dict[str, TopicFacts], claimant: Claimant, clock: Clock
) -> Foundation:
    if settings.application.replica:
        return read_foundation(settings, unit, topics, claimant, clock)
    return Foundation(first_checkpoint(settings, unit, topics, claimant), None)
