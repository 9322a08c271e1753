"""Services shared by the parts of a runner: thread pools, a clock, and Kafka clients used by all units."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import make_admin
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.kafka.transaction import UnitTransactions, unsubscribed_consumer
from joiner.runtime.settings import JoinerSettings


class Services(NamedTuple):
    """The services of a runner.

    ``pool``: a thread pool with one thread per unit. ``followers``: a separate pool for keeping units warm, so that
    this work does not delay commits. ``group_metadata_consumer``: provides the group metadata that a transaction needs
    to commit consumed offsets.
    """

    pool: Executor
    followers: Executor
    admin: AdminClient
    group_metadata_consumer: Consumer
    control: ControlLog
    clock: Clock

    def make_transactions(self, settings: JoinerSettings, unit: int) -> UnitTransactions:
        """Create the client that writes a unit's transactions. This does not claim the unit."""
        return UnitTransactions(settings, unit, self.group_metadata_consumer, self.clock)


@contextmanager
def open_services(settings: JoinerSettings, clock: Clock) -> Iterator[Services]:
    """Open the services of a runner and close them on exit. The topics must exist.

    Raises KafkaException if a Kafka client cannot be created.
    """
    admin = make_admin(settings.kafka)
    consumer = unsubscribed_consumer(settings)
    with closing(ControlLog(settings)) as control:
        pool = ThreadPoolExecutor(settings.topics.partitions, "unit")
        followers = ThreadPoolExecutor(2, "follower")
        try:
            yield Services(pool, followers, admin, consumer, control, clock)
        finally:
            # Close the consumer in the background: closing waits for the threads that still use it, but a shutdown must
            # take only seconds.
            pool.submit(consumer.close)
            pool.shutdown(wait=False)
            followers.shutdown(wait=False)
