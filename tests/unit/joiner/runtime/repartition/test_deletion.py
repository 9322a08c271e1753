"""Are all copies deleted with their offsets, and what is said if that is not possible?"""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.topics import TopicError
from joiner.runtime.repartition import deletion
from joiner.runtime.repartition.deletion import delete_copies, existing_copies
from joiner.runtime.repartition.prior import RepartitionError
from joiner.runtime.settings import replica_settings
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.repartition.test_copies import SPEED

TARGET = "lsb.plant.repartition"


class Admin:
    """Kafka with a repartition topic and the group of those that copy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics, self.members = {TARGET, "other"}, set[str]()
        self.asked: list[str] = []
        self.faults: dict[str, int] = {}
        """The code of the error of each request that fails."""
        self.lasts = 0
        """How often a deleted topic is still listed."""
        monkeypatch.setattr(deletion, "topic_facts", self._facts)
        monkeypatch.setattr(deletion, "read_group", lambda *_: [SimpleNamespace(name=name) for name in self.members])

    def _facts(self, _admin: object, names: list[str]) -> dict[str, Any]:
        if "topics" in self.asked and self.lasts > 0:
            self.lasts -= 1
            return dict.fromkeys(names)
        return dict.fromkeys(name for name in names if name in self.topics)

    def _answer(self, request: str) -> Future[None]:
        self.asked.append(request)
        future: Future[None] = Future()
        if request in self.faults:
            future.set_exception(KafkaException(KafkaError(self.faults[request])))
        else:
            future.set_result(None)
        return future

    def delete_consumer_groups(self, groups: list[str], **_: Any) -> dict[str, Future[None]]:
        assert groups == ["lsb/repartition"]
        return {groups[0]: self._answer("group")}

    def delete_topics(self, names: list[str], **_: Any) -> dict[str, Future[None]]:
        self.topics -= set(names)
        return {name: self._answer("topics") for name in names}


def delete(admin: Any, **options: Any) -> list[str]:
    return delete_copies(admin, make_settings(**({"stream": [SPEED]} | options)), ManualClock())


def test_the_group_is_deleted_before_the_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    admin: Any = Admin(monkeypatch)
    admin.lasts = 3
    assert existing_copies(admin, make_settings(stream=[SPEED])) == [TARGET]
    assert delete(admin) == [TARGET]
    assert (admin.asked, admin.topics, admin.lasts) == (["group", "topics"], {"other"}, 0)
    assert delete(admin) == []


def test_without_repartitioning_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    admin: Any = Admin(monkeypatch)
    assert delete(admin, stream=[]) == existing_copies(admin, make_settings()) == []
    assert admin.asked == []


def test_the_copies_are_deleted_with_replica_0_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    admin: Any = Admin(monkeypatch)
    settings = make_settings(stream=[SPEED], application={"replicas": 2})
    replica = replica_settings(settings, 1)
    assert existing_copies(admin, replica) == delete_copies(admin, replica, ManualClock()) == []
    assert admin.asked == []
    assert delete_copies(admin, settings, ManualClock()) == [TARGET]


def test_what_does_not_exist_needs_no_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    admin: Any = Admin(monkeypatch)
    admin.faults = {"group": KafkaError.GROUP_ID_NOT_FOUND, "topics": KafkaError.UNKNOWN_TOPIC_OR_PART}
    assert delete(admin) == [TARGET]


def test_processes_that_still_copy_are_named_and_nothing_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    admin: Any = Admin(monkeypatch)
    admin.members = {"two", "one"}
    with pytest.raises(RepartitionError, match="instances one, two are still repartitioning: stop"):
        delete(admin)
    assert admin.asked == []
    admin.members = set()
    admin.faults = {"group": KafkaError.NON_EMPTY_GROUP}
    with pytest.raises(RepartitionError, match="a process is still repartitioning: stop"):
        delete(admin)
    assert admin.topics == {TARGET, "other"}


@pytest.mark.parametrize(
    ("request_", "code", "what"),
    [
        ("group", KafkaError.GROUP_AUTHORIZATION_FAILED, "the group lsb/repartition"),
        ("topics", KafkaError.TOPIC_AUTHORIZATION_FAILED, f"topic {TARGET}"),
        ("topics", KafkaError.TOPIC_DELETION_DISABLED, f"topic {TARGET}"),
    ],
)
def test_what_may_not_be_deleted_is_named(monkeypatch: pytest.MonkeyPatch, request_: str, code: int, what: str) -> None:
    admin: Any = Admin(monkeypatch)
    admin.faults = {request_: code}
    with pytest.raises(TopicError, match=f"{what} cannot be deleted: .*delete it yourself"):
        delete(admin)


def test_an_error_that_passes_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    admin: Any = Admin(monkeypatch)
    admin.faults = {"group": KafkaError._TIMED_OUT}  # noqa: SLF001 - the public name
    with pytest.raises(KafkaException):
        delete(admin)


def test_a_deletion_that_takes_too_long_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    admin: Any = Admin(monkeypatch)
    admin.lasts = 10_000
    with pytest.raises(TopicError, match=f"still deleting {TARGET}: repeat"):
        delete(admin)
