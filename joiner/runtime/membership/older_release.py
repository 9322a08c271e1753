"""Looks in the consumer group for processes of an older release, which cannot know the control topic's assignment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from broker.kafka.groups import ListedMember, read_group
from broker.settings import KafkaSettings
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import TIMEOUT_S, describe, in_background
from joiner.runtime.membership.consumer_group import CLIENT_ID

INTERVAL_S: Final = 2.0

PATIENCE_S: Final = 2.0
"""How long a new application waits for the first answer. In a new cluster, the group's coordinator may take half a
minute to answer."""

_ANSWER_S: Final = 5.0
"""How long a single request may take. Requests are repeated for up to `TIMEOUT_S` until there is an answer."""

_log = logging.getLogger(__name__)


class OlderRelease:
    """Looks for members of a group that have another client id. Used only by the runner's thread."""

    def __init__(
        self, admin: AdminClient, kafka: KafkaSettings, group: str, is_new: Callable[[], bool], clock: Clock
    ) -> None:
        """``is_new``: returns whether the application has never run. In that case, no older release can be running."""
        self._group, self._clock, self._is_new = group, clock, is_new
        self._read = partial(read_group, admin, kafka, group, _ANSWER_S)
        self._asked: Future[list[ListedMember]] | None = None
        self._due_s = self._began_s = clock.monotonic_s()
        self._overdue_s = self._began_s + TIMEOUT_S
        self.is_known = False
        """Whether the members of the group have been read, or need not be."""
        self.is_running = False
        """Whether a process of an older release was a member when its members were last read."""

    def poll(self) -> None:
        """Ask for the members of the group periodically. Does not wait for the answer."""
        now_s = self._clock.monotonic_s()
        if self._asked is None and now_s >= self._due_s:
            self._due_s = now_s + INTERVAL_S
            self._asked = in_background("older releases", self._read)
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            self._note(asked)
        if not self.is_known and now_s - self._began_s >= PATIENCE_S:
            self._began_s = now_s
            self.is_known = self._is_new()

    def _note(self, answer: Future[list[ListedMember]]) -> None:
        try:
            members = answer.result()
        except KafkaException as error:
            _log.debug("group %r: %s", self._group, describe(error))
            is_refused = error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
            if not is_refused and self._clock.monotonic_s() < self._overdue_s:
                return
            members = []
        # This process is a member itself, so an earlier answer stands. Without one, this process may be the first one,
        # or Kafka may not permit it to describe the group.
        if self.is_known and not members:
            return
        older = sorted(member.name for member in members if member.client_id != CLIENT_ID)
        if bool(older) != self.is_running:
            _log.info(
                "the consumer group assigns the units, because older releases are running as %s"
                if older
                else "the control topic assigns the units: no older release is running any more%s",
                ", ".join(older),
            )
        self.is_known, self.is_running = True, bool(older)
