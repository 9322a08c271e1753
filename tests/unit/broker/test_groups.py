"""Are a group's members and their partitions what Kafka's answer says?"""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.groups import read_group
from tests.simulation.memory_clients import encode_assignment


def admin(*assignments: bytes, error: KafkaError | None = None, protocol: str = "consumer") -> Any:
    members = [
        SimpleNamespace(id=f"name-of-{at}-{UUID(int=at)}", client_id="client", assignment=one)
        for at, one in enumerate(assignments)
    ]
    found = [SimpleNamespace(error=error, protocol_type=protocol, members=members)]
    return SimpleNamespace(list_groups=lambda _group, timeout: found if timeout == 3.0 else [])


places = st.sets(st.tuples(st.from_regex("[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)))


@given(st.lists(places, max_size=3))
def test_each_member_has_its_name_and_the_partitions_that_its_assignment_lists(assignments: list[Any]) -> None:
    found = read_group(admin(*map(encode_assignment, assignments)), "g", 3.0)
    assert [(one.name, one.client_id) for one in found] == [(f"name-of-{at}", "client") for at in range(len(found))]
    assert [{(place.topic, place.partition) for place in one.assigned} for one in found] == assignments


def test_while_a_group_rebalances_its_members_have_no_partitions() -> None:
    assert [one.assigned for one in read_group(admin(b""), "g", 3.0)] == [[]]


def test_a_group_of_another_protocol_has_members_without_partitions() -> None:
    found = read_group(admin(b"something else", protocol="connect"), "g", 3.0)
    assert [(one.name, one.assigned) for one in found] == [("name-of-0", [])]


def test_a_group_that_may_not_be_described_is_an_error() -> None:
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        read_group(admin(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)), "g", 3.0)


@given(places.filter(bool), st.data())
def test_an_assignment_that_is_cut_short_is_an_error(assigned: set[tuple[str, int]], data: st.DataObject) -> None:
    user_data_bytes = 4
    encoded = encode_assignment(assigned)[:-user_data_bytes]
    cut = encoded[: data.draw(st.integers(1, len(encoded) - 1))]
    with pytest.raises(KafkaException, match="an assignment cannot be read"):
        read_group(admin(cut), "g", 3.0)


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
        read_group(admin(encoded), "g", 3.0)
