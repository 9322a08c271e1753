"""Is the replica that was first, and its lead, what the append times say, whatever was not read?"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.start_records import encode_start
from control.facts.lookup.leads import STRETCH_MS, Compared, Lead, Leads, ReplicaLead, ResultLog, leads_of

NOTHING = Compared(0, 0, 0, 0, 0, None)


def log(at_ms: Mapping[str, int], since_ms: int = 0) -> ResultLog:
    made = ResultLog()
    for identity, at in at_ms.items():
        made.add(msgspec.json.encode({"id": identity, "result": 1.0}), at)
    made.since_ms = since_ms
    return made


def test_the_first_of_two_replicas_and_its_lead_are_found() -> None:
    found = leads_of(
        [
            {0: log({"a": 100, "b": 200, "c": 300}), 1: log({"a": 107, "b": 190, "c": 300})},
            {0: log({"d": 400}), 1: log({"d": 401})},
        ],
        2,
    )
    assert found.compared == Compared(4, 100, 400, 1, 0, Lead(1, 10))
    assert found.replicas == [ReplicaLead(2, Lead(1, 7)), ReplicaLead(1, Lead(10, 10))]


def test_of_three_replicas_the_lead_is_over_the_next_one() -> None:
    found = leads_of([{0: log({"a": 100}), 1: log({"a": 150}), 2: log({"a": 103})}], 3)
    assert found.replicas == [ReplicaLead(1, Lead(3, 3)), ReplicaLead(0, None), ReplicaLead(0, None)]


@pytest.mark.parametrize("times_ms", [(5, 5, 9), (5, 9, 5), (9, 5, 5), (5, 5, 5)])
def test_if_two_are_first_in_the_same_millisecond_none_of_them_is(times_ms: tuple[int, int, int]) -> None:
    found = leads_of([{number: log({"a": at_ms}) for number, at_ms in enumerate(times_ms)}], 3)
    assert (found.compared.results, found.compared.same, found.compared.lead) == (1, 1, Lead(0, 0))
    assert [one.first for one in found.replicas] == [0, 0, 0]


def test_the_percentiles_are_leads_that_occurred() -> None:
    count = 200
    first = log({str(number): 1_000 for number in range(count)})
    second = log({str(number): 1_001 + number for number in range(count)})
    assert leads_of([{0: first, 1: second}], 2).compared.lead == Lead(100, 198)
    assert leads_of([{0: log({"a": 1}), 1: log({"a": 4})}], 2).compared.lead == Lead(3, 3)


@pytest.mark.parametrize(
    ("partitions", "replicas"),
    [
        ([], 2),
        ([{}], 2),
        ([{0: log({})}, {1: log({})}], 2),
        ([{0: log({}), 1: log({}, since_ms=5)}], 3),
    ],
)
def test_without_results_nothing_is_compared(partitions: list[dict[int, ResultLog]], replicas: int) -> None:
    assert leads_of(partitions, replicas) == Leads(NOTHING, [ReplicaLead(0, None)] * replicas)


def test_what_one_replica_alone_has_written_was_first_for_nobody() -> None:
    found = leads_of([{0: log({"a": 10, "b": 20}), 1: log({})}], 2)
    assert found.compared == msgspec.structs.replace(NOTHING, missing=2)
    found = leads_of([{0: log({"a": 10, "b": 20}), 1: log({"a": 11})}], 2)
    assert (found.compared.results, found.compared.missing) == (1, 1)


def test_a_replica_that_no_longer_writes_is_not_waited_for() -> None:
    late_ms = 5 + 3 * STRETCH_MS
    dead = log({"a": 5})
    found = leads_of([{0: log({"a": 6, "b": late_ms}), 1: dead, 2: log({"a": 7, "b": late_ms + 2})}], 3)
    assert found.compared == Compared(1, late_ms, late_ms, 0, 0, Lead(2, 2))
    # Two of which one is dead cannot be compared.
    found = leads_of([{0: log({"a": 6, "b": late_ms}), 1: dead}], 2)
    assert found.compared == msgspec.structs.replace(NOTHING, missing=1)


def test_of_three_replicas_a_result_counts_only_if_all_that_write_have_written_it() -> None:
    found = leads_of([{0: log({"a": 6, "b": 8}), 1: log({"a": 5, "b": 9}), 2: log({"a": 7})}], 3)
    assert (found.compared.results, found.compared.missing) == (1, 1)
    assert [one.first for one in found.replicas] == [0, 1, 0]


def test_only_the_last_minute_before_the_newest_result_of_all_partitions_is_compared() -> None:
    newest = STRETCH_MS + 1_000
    old = {0: log({"a": 999, "b": 1_000}), 1: log({"a": 1_001, "b": 1_001})}
    found = leads_of([old, {0: log({"c": newest}), 1: log({"c": newest - 1})}], 2)
    assert found.compared == Compared(2, 1_000, newest - 1, 0, 0, Lead(1, 1))


def test_what_was_not_read_completely_is_left_out() -> None:
    # Kafka gave the same time to all that arrived together, and only the last of it may have been read.
    first = log({"b": 100, "c": 101}, since_ms=100)
    second = log({"a": 90, "b": 99, "c": 103})
    assert leads_of([{0: first, 1: second}], 2).compared == Compared(1, 101, 101, 0, 0, Lead(2, 2))


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"no JSON",
        b"\xff\xff\xff\xff\x10",
        b'{"mark": 5, "quantity": "p"}',
        encode_start({"machine.data": 7}),
        b'{"id": 7}',
        b"[" * 100_000,
        b'{"id": "' + b"\xff" + b'"}',
        b'{"x": ' + b"[" * 100_000,
    ],
)
def test_whatever_else_is_in_the_topic_is_no_result(value: bytes | None) -> None:
    made = ResultLog()
    made.add(value, 5)
    assert made.at_ms == {}


def test_of_what_a_replica_has_written_twice_the_first_counts() -> None:
    made = log({"a": 50})
    for at_ms in (40, 60):
        made.add(b'{"id": "a"}', at_ms)
    assert made.at_ms == {"a": 40}


LOGS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            number: st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 40), max_size=8) for number in range(3)
        },
    ),
    min_size=1,
    max_size=3,
)


@given(LOGS, st.lists(st.integers(0, 45), min_size=9, max_size=9))
def test_what_is_compared_has_the_verdict_of_the_whole_logs_whatever_was_cut_off(
    logs: list[dict[int, dict[str, int]]], cuts: list[int]
) -> None:
    partitions = []
    firsts, same, leads = [0, 0, 0], 0, []
    for place, of_partition in enumerate(logs):
        since = {number: cuts[3 * place + number] for number in of_partition}
        read = {
            number: log({one: at for one, at in whole.items() if at >= since[number]}, since[number])
            for number, whole in of_partition.items()
        }
        partitions.append(read)
        begin = max(since.values(), default=0) + 1
        writing = [number for number, one in read.items() if any(at >= begin for at in one.at_ms.values())]
        for identity in "abcdefgh":
            copies = sorted(
                (of_partition[number][identity], number) for number in writing if identity in of_partition[number]
            )
            if len(writing) < 2 or len(copies) < len(writing) or copies[0][0] < begin:
                continue
            # A replica that wrote nothing in that stretch may have written it before.
            idle = [number for number in read if number not in writing]
            if any(identity in read[number].at_ms for number in idle):
                continue
            leads.append(copies[1][0] - copies[0][0])
            same += not leads[-1]
            firsts[copies[0][1]] += bool(leads[-1])
    found = leads_of(partitions, 3)
    assert (found.compared.results, found.compared.same) == (len(leads), same)
    assert [one.first for one in found.replicas] == firsts
    assert sum(firsts) + same == found.compared.results
    if leads:
        assert found.compared.lead is not None
        assert min(leads) <= found.compared.lead.median_ms <= found.compared.lead.p99_ms <= max(leads)


@given(LOGS)
def test_with_the_replicas_in_another_order_the_same_is_found(logs: list[dict[int, dict[str, int]]]) -> None:
    def partitions(order: list[int]) -> list[dict[int, ResultLog]]:
        return [{order[number]: log(whole) for number, whole in one.items()} for one in logs]

    found, other = leads_of(partitions([0, 1, 2]), 3), leads_of(partitions([2, 0, 1]), 3)
    assert other.compared == found.compared
    assert [other.replicas[number] for number in (2, 0, 1)] == found.replicas
