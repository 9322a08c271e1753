"""Are a group's members and their partitions what Kafka's answer says?"""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from broker.kafka import groups
from broker.kafka.groups import ListedMember, read_group
from broker.settings import KafkaSettings
from tests.simulation.memory_clients import encode_assignment

KAFKA = KafkaSettings()


def group(*assignments: bytes, error: KafkaError | None = None, protocol: str = "consumer") -> Any:
    members = [
        SimpleNamespace(id=f"name-of-{at}-{UUID(int=at)}", client_id="client", assignment=one)
        for at, one in enumerate(assignments)
    ]
    return SimpleNamespace(error=error, protocol_type=protocol, members=members)


class Admin:
    """An admin client with one answer for each request."""

    def __init__(self, *answers: list[Any]) -> None:
        self._answers = list(answers)

    def list_groups(self, name: str, timeout: float) -> list[Any]:
        assert (name, 0.0 < timeout <= 3.0) == ("g", True)
        return self._answers.pop(0)


def read(*answers: list[Any]) -> list[ListedMember]:
    """Return the members of the group that Kafka's answers describe."""
    admin: Any = Admin(*answers)
    return read_group(admin, KAFKA, "g", 3.0)


def read_one(*assignments: bytes, error: KafkaError | None = None, protocol: str = "consumer") -> list[ListedMember]:
    """Return the members of a group that Kafka lists."""
    return read([group(*assignments, error=error, protocol=protocol)])


places = st.sets(st.tuples(st.from_regex("[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)))


@given(st.lists(places, max_size=3))
def test_each_member_has_its_name_and_the_partitions_that_its_assignment_lists(assignments: list[Any]) -> None:
    found = read_one(*map(encode_assignment, assignments))
    assert [(one.name, one.client_id) for one in found] == [(f"name-of-{at}", "client") for at in range(len(found))]
    assert [{(place.topic, place.partition) for place in one.assigned} for one in found] == assignments


def test_while_a_group_rebalances_its_members_have_no_partitions() -> None:
    assert [one.assigned for one in read_one(b"")] == [[]]


def test_a_group_of_another_protocol_has_members_without_partitions() -> None:
    found = read_one(b"something else", protocol="connect")
    assert [(one.name, one.assigned) for one in found] == [("name-of-0", [])]


def test_a_group_that_may_not_be_described_is_an_error() -> None:
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        read_one(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))


@given(places.filter(bool), st.data())
def test_an_assignment_that_is_cut_short_is_an_error(assigned: set[tuple[str, int]], data: st.DataObject) -> None:
    user_data_bytes = 4
    encoded = encode_assignment(assigned)[:-user_data_bytes]
    cut = encoded[: data.draw(st.integers(1, len(encoded) - 1))]
    with pytest.raises(KafkaException, match="an assignment cannot be read"):
        read_one(cut)


@pytest.mark.parametrize(
    "encoded",
    [
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hih", 0, 1, -1),
        struct.pack(">hih1si", 0, 1, 1, b"a", -1),
        struct.pack(">hih1sii", 0, 1, 1, b"\0", 1, 0),
        struct.pack(">hih1sii", 0, 1, 1, b"\xff", 1, 0),
    ],
    ids=["topics", "length", "partitions", "null", "not UTF-8"],
)
def test_an_assignment_with_impossible_contents_is_an_error(encoded: bytes) -> None:
    with pytest.raises(KafkaException, match="an assignment cannot be read"):
        read_one(encoded)


class Coordinator:
    """A consumer that asks for committed offsets. It refuses as many requests as there are ``codes``."""

    def __init__(self, *codes: int) -> None:
        self._codes, self.is_closed = list(codes), False

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert 0.0 < timeout <= 3.0
        if self._codes:
            raise KafkaException(KafkaError(self._codes.pop(0)))
        return places

    def close(self) -> None:
        self.is_closed = True


def test_a_group_that_is_not_listed_has_no_members_if_its_coordinator_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    monkeypatch.setattr(groups, "Consumer", lambda config: coordinator if config["group.id"] == "g" else None)
    assert read([], []) == []
    assert coordinator.is_closed


def test_a_group_whose_coordinator_was_loading_it_has_the_members_that_are_listed_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "Consumer", lambda _config: Coordinator())
    assert [one.name for one in read([], [group(b"")])] == ["name-of-0"]


@pytest.mark.parametrize(
    "code",
    [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE],
)
def test_a_coordinator_that_is_not_ready_yet_is_asked_again(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(code, code)
    monkeypatch.setattr(groups, "Consumer", lambda _config: coordinator)
    assert read([], []) == []
    assert coordinator.is_closed


@pytest.mark.parametrize(
    "codes",
    [[KafkaError.GROUP_AUTHORIZATION_FAILED], 1_000 * [KafkaError.COORDINATOR_LOAD_IN_PROGRESS]],
    ids=["refused", "loading for too long"],
)
def test_a_group_that_is_not_listed_is_unknown_if_its_coordinator_does_not_answer(
    codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(*codes)
    monkeypatch.setattr(groups, "Consumer", lambda _config: coordinator)
    monkeypatch.setattr(groups, "_SHORTEST_S", 0.001)
    admin: Any = Admin([])
    with pytest.raises(KafkaException, match="its coordinator does not answer"):
        read_group(admin, KAFKA, "g", 0.1)
    assert coordinator.is_closed


def test_the_client_accepts_how_it_is_configured_to_ask_the_coordinator() -> None:
    admin: Any = Admin([])
    with pytest.raises(KafkaException, match="its coordinator does not answer"):
        read_group(admin, KafkaSettings(bootstrap_servers="127.0.0.1:1"), "g", 0.2)
