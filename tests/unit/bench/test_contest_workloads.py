"""The contest's workloads."""

from __future__ import annotations

import io
import json

import fastavro
import numpy as np
import pytest

from bench.contest.workload import nexmark
from bench.contest.workload.expected import expect
from bench.contest.workload.inputs import AVRO, WORKLOADS, make, of_curve
from bench.harness.other_layout import SCHEMA, document
from joiner.mapping.framing import split_header

RECORDS = 3_000


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_each_time_and_as_long_as_asked(name: str) -> None:
    once, again = make(name, RECORDS), make(name, RECORDS)
    assert len(once) == RECORDS
    assert list(once.messages(0, RECORDS)) == list(again.messages(0, RECORDS))
    assert set(once.side.tolist()) == {0, 1}


def test_a_message_says_what_the_row_is() -> None:
    workload = make("alternating", 100)
    place, message = next(workload.messages(9, 10))
    value = json.loads(message["value"])
    assert place == workload.partition[9]
    assert value["thing"].encode() == message["key"]
    assert (value["quantity"], value["id"], value["phenomenonTime"]) == ("torque", "9", workload.time_ms[9])


def test_the_messages_in_avro_are_those_in_json_with_the_id_of_their_schema() -> None:
    in_json, in_avro = make("alternating", RECORDS), make(AVRO, RECORDS)
    assert expect(in_avro).pairs.tolist() == expect(in_json).pairs.tolist()
    schema, wanted = fastavro.parse_schema(json.loads(SCHEMA)), list(in_json.messages(0, RECORDS))
    for (place, message), (other_place, other) in zip(in_avro.messages(0, RECORDS, 258), wanted, strict=True):
        schema_id, data = split_header(message["value"])
        content, record = fastavro.schemaless_reader(io.BytesIO(data), schema, None), json.loads(other["value"])
        assert (place, message["key"], schema_id) == (other_place, other["key"], 258)
        assert content == document(
            record["thing"], record["quantity"], record["phenomenonTime"], record["result"], record["id"]
        )
        assert len(json.dumps(content)) == len(other["value"])


def test_the_width_of_a_window_is_that_of_the_neighbours_it_must_hold() -> None:
    expected = expect(make("alternating", RECORDS))
    assert expected.width_ms(1.0) == 8
    assert expected.width_ms(0.5) == 8
    rates = expect(make("rates 1:10", RECORDS))
    assert rates.width_ms(0.1) < rates.width_ms(1.0) == 80


def test_the_generator_of_nexmark_makes_one_person_three_auctions_and_46_bids_of_50_events() -> None:
    newest_auction, newest_person = (last(np.arange(150)) for last in (nexmark.last_auction, nexmark.last_person))
    assert newest_auction[[0, 1, 2, 3, 4, 49, 50, 51, 99]].tolist() == [-1, 0, 1, 2, 2, 2, 2, 3, 5]
    assert newest_person[[0, 1, 49, 50, 149]].tolist() == [0, 0, 0, 1, 2]


def test_half_of_the_bids_are_on_the_hot_auction_and_three_quarters_of_the_auctions_are_by_the_hot_seller() -> None:
    records = 200_000
    for streams, share in ((nexmark.auctions_and_bids, 1 / 2), (nexmark.persons_and_auctions, 3 / 4)):
        thing, side, time_ms, _ = streams(records, np.random.default_rng(1))
        assert (np.diff(time_ms) > 0).all()
        newest = np.maximum.accumulate(np.where(side == 0, thing, 0))
        is_second = side == 1
        is_hot = thing[is_second] == newest[is_second] // 100 * 100
        # A cold choice may be hot by chance.
        assert is_hot.mean() == pytest.approx(share, abs=0.02)
        # No id is chosen that is further ahead than ten.
        assert 0 < (thing[is_second] - newest[is_second]).max() <= 10
        assert np.array_equal(thing[side == 0], np.arange((side == 0).sum()))


def test_a_curve_changes_one_thing_of_the_alternating_workload() -> None:
    usual = make("alternating", RECORDS)
    assert len(make(of_curve("keys", 100), RECORDS).names) == 100
    spread_out = make(of_curve("partitions", 16), RECORDS)
    assert (spread_out.partitions, set(spread_out.partition.tolist())) == (16, set(range(16)))
    large = make(of_curve("bytes of a record", 1_000), RECORDS)
    ((_, message),) = large.messages(0, 1)
    assert (len(message["value"]) == pytest.approx(1_000, abs=20), json.loads(message["value"])["id"]) == (True, "0")
    assert np.array_equal(large.time_ms, usual.time_ms)
    assert make(of_curve("ms of disorder", 100), RECORDS).lateness_ms == 100
    assert np.array_equal(make(of_curve("cores", 2), RECORDS).time_ms, usual.time_ms)
