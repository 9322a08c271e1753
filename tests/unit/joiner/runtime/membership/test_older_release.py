"""Are processes of an older release noticed in the consumer group?"""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.membership.consumer_group import CLIENT_ID
from joiner.runtime.membership.older_release import INTERVAL_S, PATIENCE_S, OlderRelease
from tests.manual_clock import ManualClock


class Group:
    """An admin client whose answers the test gives."""

    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []

    def describe_consumer_groups(self, groups: list[str], **_more: Any) -> dict[str, Future[Any]]:
        self.asked.append(Future())
        return {groups[0]: self.asked[-1]}

    def answer(self, *client_ids: str) -> None:
        members = [SimpleNamespace(group_instance_id=f"i{at}", client_id=one) for at, one in enumerate(client_ids)]
        self.asked[-1].set_result(SimpleNamespace(members=members))


def test_nothing_is_known_before_the_first_answer_and_each_later_one_counts() -> None:
    clock, group = ManualClock(), Group()
    admin: Any = group
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


def test_a_late_answer_holds_up_no_new_application_and_counts_when_it_comes() -> None:
    clock, group = ManualClock(), Group()
    admin: Any = group
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


@pytest.mark.parametrize("code", [KafkaError.GROUP_ID_NOT_FOUND, KafkaError.GROUP_AUTHORIZATION_FAILED])
def test_a_group_that_cannot_be_described_has_no_older_members(code: int) -> None:
    clock, group = ManualClock(), Group()
    admin: Any = group
    older = OlderRelease(admin, "g", lambda: True, clock)
    older.poll()
    group.asked[0].set_exception(KafkaException(KafkaError(code)))
    older.poll()
    assert (older.is_known, older.is_running) == (True, False)
