"""Are processes of an older release noticed in the consumer group?"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.groups import GroupMember
from joiner.runtime.membership import older_release
from joiner.runtime.membership.consumer_group import CLIENT_ID
from joiner.runtime.membership.older_release import INTERVAL_S, PATIENCE_S, OlderRelease
from tests.manual_clock import ManualClock


class Group:
    """A group whose members the test tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Future[list[GroupMember]]] = []
        monkeypatch.setattr(older_release, "in_background", self._ask)

    def _ask(self, _name: str, _call: Any) -> Future[list[GroupMember]]:
        self.asked.append(Future())
        return self.asked[-1]

    def answer(self, *client_ids: str) -> None:
        self.asked[-1].set_result([GroupMember(f"i{at}", one, []) for at, one in enumerate(client_ids)])


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch)


def test_nothing_is_known_before_the_first_answer_and_each_later_one_counts(group: Group) -> None:
    clock, admin = ManualClock(), MagicMock()
    older = OlderRelease(admin, "g", lambda: True, clock)
    older.poll()
    older.poll()
    assert (older.is_known, older.is_running, len(group.asked)) == (False, False, 1)
    group.answer(CLIENT_ID, "rdkafka")
    older.poll()
    assert (older.is_known, older.is_running) == (True, True)
    clock.now_s += INTERVAL_S
    older.poll()
    assert older.is_running, "until the group answers"
    group.answer(CLIENT_ID, CLIENT_ID)
    older.poll()
    assert not older.is_running


def test_a_late_answer_holds_up_no_new_application_and_counts_when_it_comes(group: Group) -> None:
    clock, admin = ManualClock(), MagicMock()
    is_new = False
    older = OlderRelease(admin, "g", lambda: is_new, clock)
    older.poll()
    clock.now_s += PATIENCE_S
    older.poll()
    assert not older.is_known, "an older release may be running"
    is_new = True
    clock.now_s += PATIENCE_S
    older.poll()
    assert (older.is_known, older.is_running) == (True, False)
    group.answer(CLIENT_ID, "rdkafka")
    older.poll()
    assert older.is_running


def test_a_group_that_cannot_be_read_has_no_older_members(group: Group) -> None:
    older = OlderRelease(MagicMock(), "g", lambda: True, ManualClock())
    older.poll()
    group.asked[0].set_exception(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
    older.poll()
    assert (older.is_known, older.is_running) == (True, False)


@pytest.mark.parametrize("error", [None, KafkaError(KafkaError.REQUEST_TIMED_OUT)])
def test_while_the_group_cannot_be_read_an_older_release_is_taken_to_run_on(
    error: KafkaError | None, group: Group
) -> None:
    clock = ManualClock()
    older = OlderRelease(MagicMock(), "g", lambda: True, clock)
    older.poll()
    group.answer(CLIENT_ID, "rdkafka")
    older.poll()
    clock.now_s += INTERVAL_S
    older.poll()
    if error is None:
        group.answer()  # this process is a member, so that an empty group means that its coordinator does not answer
    else:
        group.asked[-1].set_exception(KafkaException(error))
    older.poll()
    assert (len(group.asked), older.is_running) == (2, True)
