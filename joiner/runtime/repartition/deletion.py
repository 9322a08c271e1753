"""Deletes all copies, and the offsets up to which they were made, so that copying starts over.

Replicas share the copies, which are deleted with the state of replica 0: the others go on reading those that exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from broker.kafka.groups import read_group
from broker.kafka.topics import TopicError, is_passing, topic_facts
from joiner.runtime.kafka.clients import TIMEOUT_S
from joiner.runtime.repartition.prior import RepartitionError

if TYPE_CHECKING:
    from collections.abc import Collection

    from confluent_kafka.admin import AdminClient

    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

_POLL_S: Final = 0.1


def existing_copies(admin: AdminClient, settings: JoinerSettings) -> list[str]:
    """Return the repartition topics that exist and belong to this replica. Raises KafkaException."""
    targets = _targets(settings)
    return sorted(topic_facts(admin, targets)) if targets else []


def delete_copies(admin: AdminClient, settings: JoinerSettings, clock: Clock) -> list[str]:
    """Delete the repartition topics and the group of the processes that copy. Return the topics that existed.

    The group is deleted first. If only that succeeds, copying continues behind the last copies, so nothing is copied
    twice. Without this, offsets that a transaction may change would still be waited for, perhaps for ever. Raises
    `RepartitionError` if a process is copying, `TopicError` if a topic or the group cannot be deleted, and
    KafkaException.
    """
    if not _targets(settings):
        return []
    group = settings.repartition_group
    if members := read_group(admin, settings.kafka, group, TIMEOUT_S):
        raise _still_copying({member.name for member in members})
    try:
        # In librdkafka 2.16, this request aborts the process if the connection breaks while it is under way (see
        # `broker.kafka.groups`). The command can then be repeated.
        admin.delete_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.NON_EMPTY_GROUP:
            raise _still_copying(()) from error
        if code != KafkaError.GROUP_ID_NOT_FOUND:
            raise _not_deleted(f"the group {group}", error) from error
    if existing := existing_copies(admin, settings):
        _delete_topics(admin, existing, clock)
    return existing


def _targets(settings: JoinerSettings) -> list[str]:
    return [] if settings.application.replica else list(settings.repartitioned.values())


def _delete_topics(admin: AdminClient, topics: list[str], clock: Clock) -> None:
    for topic, future in admin.delete_topics(topics, operation_timeout=TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _not_deleted(f"topic {topic}", error) from error
    deadline_s = clock.monotonic_s() + TIMEOUT_S
    while left := topic_facts(admin, topics):
        if clock.monotonic_s() > deadline_s:
            message = f"Kafka is still deleting {', '.join(sorted(left))}: repeat the command in a while"
            raise TopicError(message)
        clock.sleep(_POLL_S)


def _still_copying(names: Collection[str]) -> RepartitionError:
    who = f"instances {', '.join(sorted(names))} are" if names else "a process is"
    return RepartitionError(
        f"{who} still repartitioning: stop all processes of the application, and repeat the command. A process that "
        "was killed counts until its session has timed out (application.session_timeout)"
    )


def _not_deleted(what: str, error: KafkaException) -> Exception:
    """Return the error to raise if something cannot be deleted."""
    if is_passing(error):
        return error
    return TopicError(
        f"{what} cannot be deleted: {error.args[0].str()}. Permit it, or delete it yourself, and repeat the command"
    )
