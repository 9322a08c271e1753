"""Reads what an application's instances have recently reported about their sites, for tools that are not members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final

from confluent_kafka import TopicPartition

from broker.kafka.topics import topic_facts
from joiner.runtime.control import Logged, decode_member
from joiner.runtime.kafka.clients import TIMEOUT_S, log_range, make_admin, make_reader, read_to_end
from joiner.runtime.membership.member import SUMMARY_S
from joiner.runtime.membership.state import SiteState

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

SINCE_S: Final = 3 * SUMMARY_S
"""How far back to read. These records include a summary if any instance is running."""


def read_sites(settings: JoinerSettings, clock: Clock) -> Mapping[str, SiteState]:
    """Return the state of each site that has been heard from recently. Raises KafkaException.

    The control topic must exist.
    """
    return fold(read_records(settings, clock))


def read_records(settings: JoinerSettings, clock: Clock, since_s: float = SINCE_S) -> list[Logged]:
    """Return the records about members from the last ``since_s`` seconds. Raises KafkaException.

    The control topic must exist.
    """
    topic = settings.control_topic
    with closing(make_reader(settings.kafka, settings.application.name)) as consumer:
        since = TopicPartition(topic, 0, round(1000 * (clock.wall_s() - since_s)))
        (place,) = consumer.offsets_for_times([since], TIMEOUT_S)
        _, end = log_range(consumer, topic, 0)
        if not 0 <= place.offset < end:
            return []
        return [
            Logged(record, message.offset() or 0, int(message.timestamp()[1]))
            for message in read_to_end(consumer, clock, topic, 0, place.offset, end)
            if (record := decode_member(message.value())) is not None
        ]


def read_site(settings: JoinerSettings, site: str, clock: Clock) -> SiteState | None:
    """Return the state of a site, or None if it has not been heard from recently. Raises KafkaException."""
    if settings.control_topic not in topic_facts(make_admin(settings.kafka), [settings.control_topic]):
        return None
    return read_sites(settings, clock).get(site)


def fold(records: Iterable[Logged]) -> dict[str, SiteState]:
    """Return the state of each site after these records, which need not start at the beginning of the log."""
    sites: dict[str, SiteState] = {}
    for logged in records:
        record = logged.record
        sites.setdefault(record.site, SiteState(record.site)).apply(record, logged.offset)
    return sites
