"""Transactions of a unit that hang: ended for Kafka's coordinator, and open in the logs for ever.

Whoever initialises a transactional id expects that everything open under it has been rolled back. A broker can
miss that: Kafka 4.3.1, killed and started again, drops the rollback of a transaction whose time runs out while it
starts ("Couldn't find leader endpoint … can be skipped"). The records then stay open, and the *next* commit of the
same producer commits them, too: results that were rolled back would become visible, and those of their replay beside
them. An unclean leader election may lose markers in the same way (KIP-664).

So a claimant looks for what is open in the partitions it writes, and rolls it back by a transaction of its own over
these partitions, which it aborts: that ends everything open of this producer. This is also right where the broker
has forgotten the markers of a commit: the progress record is part of every commit, so it is rolled back with the
results, and they come again from the replay. It is not where a broker has forgotten some of the markers of one commit;
then it has lost what it acknowledged.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import Final

from joiner.run.clients import log_range, make_consumer
from joiner.run.progress import Progress
from joiner.run.settings import JoinerSettings
from joiner.run.transaction import UnitTransactions
from joiner.run.unit import UnitStopped

_PATIENCE_S: Final = 10.0
_LOOK_S: Final = 0.05

_log = logging.getLogger(__name__)


def end_hanging(settings: JoinerSettings, unit: int, transactions: UnitTransactions, progress: Progress) -> None:
    """Roll back what hangs in the unit's partitions; to be called between init and the first commit.

    Raises `UnitStopped` where that does not help, `Fenced`, `Aborted`, and KafkaException where Kafka does not answer.
    """
    topics = [settings.state_topic, settings.topics.out, settings.topics.late, settings.topics.rejected]
    found = _open_from(settings, unit, topics)
    if not found:
        return
    where = ", ".join(f"{topic} [{unit}] from {at}" for topic, at in found.items())
    _log.warning("unit %s: a transaction is open that Kafka should have ended (%s); rolling it back", unit, where)
    transactions.roll_back(topics, progress)
    if _stays_open(settings, unit):
        # It may be the transaction of somebody who has taken the unit since; then this one fails.
        transactions.roll_back(topics, progress)
        if _stays_open(settings, unit):
            topic = settings.state_topic
            at = _open_from(settings, unit, [topic]).get(topic)
            raise UnitStopped(
                f"unit {unit}: a transaction in {topic} [{unit}] is open from offset {at} on, although its producer "
                f"was fenced: end it with `kafka-transactions.sh abort --topic {topic} --partition {unit} "
                f"--start-offset {at}`, in all partitions that `kafka-transactions.sh find-hanging` names, "
                "and start again"
            )


def _stays_open(settings: JoinerSettings, unit: int) -> bool:
    """Whether something is still open in the state topic after a while: Kafka answers before it writes its markers.

    Nobody but the unit's owner writes there; the other topics have other writers, too.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while _open_from(settings, unit, [settings.state_topic]):
        if time.monotonic() > deadline_s:
            return True
        time.sleep(_LOOK_S)
    return False


def _open_from(settings: JoinerSettings, unit: int, topics: list[str]) -> dict[str, int]:
    """Where the unit's partitions hold something that is neither committed nor rolled back: the first such offset."""
    with (
        closing(make_consumer(settings.kafka, settings.application.name)) as stable,
        closing(make_consumer(settings.kafka, settings.application.name, isolation_level="read_uncommitted")) as all_of,
    ):
        ends = {topic: (log_range(stable, topic, unit)[1], log_range(all_of, topic, unit)[1]) for topic in topics}
    return {topic: settled for topic, (settled, end) in ends.items() if settled < end}
