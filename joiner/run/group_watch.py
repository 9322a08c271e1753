"""Whether the group gives every unit to somebody.

It may not, and not notice: units go from one member to another in two rebalances, and where every member is killed
between the two and comes back under its name, Kafka hands each what it had after the first, without a second. A unit
that was on its way is then nobody's until some member joins or leaves. So the group is looked at now and then; where a
unit is nobody's for two looks, one of the members asks for a new assignment. As in `topic_watch` nothing waits here.
"""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from joiner.run.settings import JoinerSettings

INTERVAL_S: Final = 5.0
"""Between two looks; much longer than the two rebalances take."""

_ANSWER_S: Final = 10.0


class GroupWatch:
    """Looks at the group of an application for one of its processes."""

    def __init__(self, admin: AdminClient, settings: JoinerSettings) -> None:
        self._admin = admin
        self._group = settings.application.name
        self._instance = settings.application.instance
        self._topic = settings.input_topics[0]
        self._units = frozenset(range(settings.topics.partitions))
        self._asked: Any = None
        self._left_out: frozenset[int] = frozenset()
        self._due_s = time.monotonic() + INTERVAL_S

    def check(self) -> list[int]:
        """Ask when it is time, or judge the answer when it is there.

        Returns the units that have been nobody's for two looks, where it is this process that is to do something.
        """
        if self._asked is None:
            if time.monotonic() >= self._due_s:
                self._asked = self._admin.describe_consumer_groups([self._group], request_timeout=_ANSWER_S)[
                    self._group
                ]
            return []
        if not self._asked.done():
            return []
        answer, self._asked = self._asked, None
        self._due_s = time.monotonic() + INTERVAL_S
        before = self._left_out
        self._left_out = frozenset() if answer.exception() is not None else self._judge(answer.result())
        return sorted(before & self._left_out)

    def _judge(self, group: Any) -> frozenset[int]:
        instances = [member.group_instance_id or "" for member in group.members]
        if group.state != ConsumerGroupState.STABLE or self._instance != min(instances, default=None):
            return frozenset()
        assigned = [place for member in group.members for place in member.assignment.topic_partitions]
        return self._units - {place.partition for place in assigned if place.topic == self._topic}
