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

from joiner.run.clients import TIMEOUT_S, log_range, make_consumer
from joiner.run.progress import Progress
from joiner.run.settings import JoinerSettings
from joiner.run.transaction import UnitTransactions
from joiner.run.unit import UnitStopped

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
    # Nobody but the unit's owner writes there, so nothing may stay open; the others have other writers, too.
    deadline_s = time.monotonic() + TIMEOUT_S
    while still := _open_from(settings, unit, [settings.state_topic]):
        # Kafka answers before it has written its markers.
        if time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            continue
        raise UnitStopped(
            f"unit {unit}: a transaction in {settings.state_topic} [{unit}] is open from offset "
            f"{still[settings.state_topic]} on, although its producer was fenced: end it with "
            f"`kafka-transactions.sh abort --topic {settings.state_topic} --partition {unit} --start-offset "
            f"{still[settings.state_topic]}`, in all partitions that `kafka-transactions.sh find-hanging` names, "
            "and start again"
        )


def _open_from(settings: JoinerSettings, unit: int, topics: list[str]) -> dict[str, int]:
    """Where the unit's partitions hold something that is neither committed nor rolled back: the first such offset."""
    with (
        closing(make_consumer(settings.kafka, settings.application.name)) as stable,
        closing(make_consumer(settings.kafka, settings.application.name, isolation_level="read_uncommitted")) as all_of,
    ):
        ends = {topic: (log_range(stable, topic, unit)[1], log_range(all_of, topic, unit)[1]) for topic in topics}
    return {topic: settled for topic, (settled, end) in ends.items() if settled < end}
