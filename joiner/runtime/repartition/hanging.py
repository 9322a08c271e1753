"""Reports transactions in the repartition topics that do not end, because Kafka has lost their ends.

Nobody reads the copies behind them, and the joiner cannot tell this from a topic to which nothing is written. The
requests are asynchronous, like those of `TopicWatch`: the loop polls for the answers. Failed requests are repeated.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import IsolationLevel, TopicPartition

from joiner.runtime.kafka.clients import LATEST, how_to_end
from joiner.runtime.repartition.copies import TRANSACTION_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka.admin import AdminClient

    from joiner.runtime.clock import Clock
    from joiner.runtime.repartition.merging import Place
    from joiner.runtime.settings import JoinerSettings

INTERVAL_S: Final = 15.0
"""The time between requests."""

HANGING_S: Final = TRANSACTION_S + 50.0
"""How long a transaction is open until it is reported. Kafka ends those of processes that have died long before."""

_ANSWER_S: Final = 10.0

_log = logging.getLogger(__name__)


class HangingTransactions:
    """Looks for such transactions. Not thread-safe."""

    def __init__(self, admin: AdminClient, settings: JoinerSettings, clock: Clock) -> None:
        self._admin, self._kafka, self._clock = admin, settings.kafka, clock
        self._places = [
            TopicPartition(target, number)
            for target in settings.repartitioned.values()
            for number in range(settings.topics.partitions)
        ]
        self._asked: tuple[Mapping[TopicPartition, Any], ...] = ()
        self._open: dict[Place, tuple[int, float]] = {}
        """The offset from which a transaction is open, and since when, by partition."""
        self._due_s = -math.inf

    def check(self) -> None:
        """Send the requests if they are due, or examine the answers."""
        now_s = self._clock.monotonic_s()
        if self._asked:
            if all(future.done() for answers in self._asked for future in answers.values()):
                stable, everything = map(_offsets, self._asked)
                self._asked, self._due_s = (), now_s + INTERVAL_S
                self._judge(stable, everything, now_s)
        elif now_s >= self._due_s:
            self._asked = tuple(
                self._admin.list_offsets(
                    dict.fromkeys(self._places, LATEST), isolation_level=level, request_timeout=_ANSWER_S
                )
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )

    def _judge(self, stable: Mapping[Place, int], everything: Mapping[Place, int], now_s: float) -> None:
        for place in stable.keys() & everything.keys():
            at = stable[place]
            if at >= everything[place]:
                self._open.pop(place, None)
                continue
            before, since_s = self._open.get(place, (-1, now_s))
            if before != at:
                self._open[place] = at, now_s
            elif now_s - since_s >= HANGING_S:
                # Reported once, because it stays until somebody acts.
                self._open[place] = at, math.inf
                topic, partition = place
                what = (
                    "repartitioning: a transaction in %s [%s] has been open from offset %s for %.0f s, so the copies "
                )
                what += "behind it are not joined (see recovery.md). %s"
                how = how_to_end(self._kafka, topic, partition, at)
                _log.warning(what, topic, partition, at, now_s - since_s, how)


def _offsets(answers: Mapping[TopicPartition, Any]) -> dict[Place, int]:
    return {
        (place.topic, place.partition): future.result().offset
        for place, future in answers.items()
        if future.exception() is None
    }
