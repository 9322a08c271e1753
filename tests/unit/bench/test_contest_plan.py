"""The plan of the contest: which measurements there are, how often, and in which order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from bench.contest.contenders import AVRO_CONTENDERS, CEILINGS, CONTENDERS, HEADLINE, PASS_THROUGH, ROW_CONTENDERS
from bench.contest.plan import BASES, FULL, KINDS, QUICK, contender, plan, trials
from bench.contest.workload.inputs import AVRO, CURVES, ROWS, make

EVERY = (*CONTENDERS, "engine in memory")


def test_the_turns_are_outside_and_each_measurement_is_planned_once() -> None:
    every = list(plan(QUICK, ("throughput", "widths"), ("plain process", "Spark range join, best")))
    assert len(set(every)) == len(every) > 4
    assert [one.turn for one in every] == sorted(one.turn for one in every)
    assert {one.contender for one in every} == {"plain process", "Spark range join, best"}


def test_the_order_of_the_contenders_is_drawn_for_each_turn_and_is_that_of_the_seed() -> None:
    kinds = ("throughput",)
    orders = [
        [one.contender for one in plan(FULL, kinds, HEADLINE) if one.turn == turn]
        for turn in range(1, FULL.turns["throughput"] + 1)
    ]
    assert all(sorted(order) == sorted(HEADLINE) for order in orders)
    assert len({tuple(order) for order in orders}) == len(orders)
    assert len({order[0] for order in orders}) > 1
    assert list(plan(FULL, kinds, EVERY)) == list(plan(FULL, kinds, EVERY))
    assert list(plan(replace(FULL, seed=8), kinds, EVERY)) != list(plan(FULL, kinds, EVERY))


def test_a_contender_that_a_headline_names_has_five_turns_and_the_others_have_one() -> None:
    turns = Counter(one.contender for one in plan(FULL, ("throughput",), EVERY))
    assert {turns[name] for name in HEADLINE} == {5}
    assert {turns[name] for name in EVERY if name not in HEADLINE} == {1}
    of_flink = Counter(one.contender for one in plan(FULL, ("latency",), HEADLINE) if "Flink i" in one.contender)
    assert of_flink == {f"Flink interval join, checkpoint {ms} ms": 5 for ms in (20, 50, 100, 200)}


def test_aligned_rows_are_measured_beside_the_two_stream_join_in_every_turn() -> None:
    every = list(plan(FULL, ("rows",), EVERY))
    assert Counter((one.contender, one.workload) for one in every) == {
        ("plain process", "alternating"): 3,
        **{(name, ROWS): 3 for name in ROW_CONTENDERS},
    }
    assert len({every.index(one) % 6 for one in every if one.workload == "alternating"}) > 1


def test_avro_is_measured_for_every_contender_in_every_turn_beside_the_joiner_on_json() -> None:
    every = list(plan(FULL, ("avro",), EVERY))
    assert Counter((one.contender, one.workload) for one in every) == {
        ("plain process", "alternating"): 5,
        **{(name, AVRO): 5 for name in AVRO_CONTENDERS},
    }
    assert {"plain process", "Flink by hand", "Kafka Streams by hand"} <= set(AVRO_CONTENDERS)
    assert {one.contender for one in every if one.share} == {"Flink interval join", "Kafka Streams window"}
    assert FULL.of("avro") == (FULL.avro_records, FULL.limits)
    assert len({every.index(one) % 6 for one in every if one.workload == "alternating"}) > 1


def test_every_kind_has_measurements_of_contenders_that_exist() -> None:
    for kind in KINDS:
        planned = list(plan(FULL, (kind,), EVERY))
        assert planned
        for one in planned:
            assert one.contender in EVERY or contender(one.contender).name == one.contender
    assert set(BASES) >= set(trials())


def test_every_curve_is_planned_with_workloads_that_exist() -> None:
    planned = list(plan(QUICK, ("curves",), EVERY))
    assert {one.curve for one in planned} == set(QUICK.curves)
    assert set(FULL.curves) == set(CURVES)
    for one in planned:
        assert len(make(one.workload, 400)) == 400


def test_the_pass_throughs_of_other_languages_are_contenders() -> None:
    assert {one.name for one in CEILINGS} <= set(CONTENDERS) & set(HEADLINE)
    assert PASS_THROUGH.name in HEADLINE
