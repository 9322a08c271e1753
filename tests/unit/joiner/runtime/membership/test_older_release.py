"""Are processes of an older release noticed in the consumer group?"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.groups import ListedMember
from broker.settings import KafkaSettings
from joiner.runtime.kafka.clients import TIMEOUT_S
from joiner.runtime.membership import older_release
from joiner.runtime.membership.consumer_group import CLIENT_ID
from joiner.runtime.membership.older_release import INTERVAL_S, PATIENCE_S, OlderRelease
from tests.manual_clock import ManualClock

KAFKA = KafkaSettings()


class Group:
    """A group whose members the test tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Future[list[ListedMember]]] = []
        monkeypatch.setattr(older_release, "in_background", self._ask)

    def _ask(self, _name: str, _call: Any) -> Future[list[ListedMember]]:
        self.asked.append(Future())
        return self.asked[-1]

    def fail(self, code: int) -> None:
        self.asked[-1].set_exception(KafkaException(KafkaError(code)))

    def answer(self, *client_ids: str) -> None:
        self.asked[-1].set_result([ListedMember(f"i{at}", one, []) for at, one in enumerate(client_ids)])


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch)


def test_nothing_is_known_before_the_first_answer_and_each_later_one_counts(group: Group) -> None:
    clock, admin = ManualClock(), MagicMock()
    older = OlderRelease(admin, KAFKA, "g", lambda: True, clock)
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
    older = OlderRelease(admin, KAFKA, "g", lambda: is_new, clock)
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


def test_a_group_that_may_not_be_read_has_no_older_members(group: Group) -> None:
    older = OlderRelease(MagicMock(), KAFKA, "g", lambda: True, ManualClock())
    older.poll()
    group.fail(KafkaError.GROUP_AUTHORIZATION_FAILED)
    older.poll()
    assert (older.is_known, older.is_running) == (True, False)


def test_the_first_answer_is_awaited_for_as_long_as_kafka_may_need(group: Group) -> None:
    clock = ManualClock()
    older = OlderRelease(MagicMock(), KAFKA, "g", lambda: False, clock)
    until_s = clock.now_s + TIMEOUT_S
    while clock.now_s < until_s:
        older.poll()
        group.fail(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
        older.poll()
        assert not older.is_known
        clock.now_s += INTERVAL_S
    older.poll()
    group.fail(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    older.poll()
    assert (older.is_known, older.is_running) == (True, False)


@pytest.mark.parametrize("code", [None, KafkaError.REQUEST_TIMED_OUT, KafkaError.GROUP_AUTHORIZATION_FAILED])
def test_while_the_group_cannot_be_read_an_older_release_is_taken_to_run_on(code: int | None, group: Group) -> None:
    clock = ManualClock()
    older = OlderRelease(MagicMock(), KAFKA, "g", lambda: True, clock)
    older.poll()
    group.answer(CLIENT_ID, "rdkafka")
    older.poll()
    clock.now_s += INTERVAL_S
    older.poll()
    if code is None:
        group.answer()  # this process is a member itself, so this cannot be the whole group
    else:
        group.fail(code)
    older.poll()
    assert (len(group.asked), older.is_running) == (2, True)
