"""Which topics of a unit are paused until others catch up, and how many records has a batch?"""

from __future__ import annotations

import pytest

from joiner.runtime.task.flow_control import ROWS_MAX, BatchLimit, Lead, topics_to_pause
from tests.unit.joiner.runtime.joiner_inputs import make_settings


def lead(topic: str, behind: str, fill: float = 0.8, share: float = 0.8) -> Lead:
    return Lead(topic, behind, fill, share)


@pytest.mark.parametrize(
    ("fill", "share", "paused", "waits"),
    [
        (0.6, 0.6, "", "a"),
        (0.6, 0.4, "", ""),
        (0.4, 0.6, "", ""),
        (0.3, 0.3, "a", "a"),
        (0.3, 0.2, "a", ""),
        (0.2, 0.3, "a", ""),
    ],
)
def test_a_topic_waits_from_half_of_the_room_on_until_a_quarter(
    fill: float, share: float, paused: str, waits: str
) -> None:
    assert topics_to_pause([lead("a", "b", fill, share)], set(paused), ()) == set(waits)


def test_nothing_waits_for_a_topic_that_is_silent() -> None:
    assert topics_to_pause([lead("a", "b")], {"a"}, {"b"}) == set()
    assert topics_to_pause([lead("a", "b")], (), {"a"}) == {"a"}


def test_a_topic_waits_for_one_that_waits_itself() -> None:
    assert topics_to_pause([lead("a", "b"), lead("c", "a")], (), ()) == {"a", "c"}


def test_topics_that_wait_for_each_other_are_all_read_and_so_are_those_behind_them() -> None:
    assert topics_to_pause([lead("a", "b"), lead("b", "a")], (), ()) == set()
    circle = [lead("a", "b"), lead("b", "c"), lead("c", "a"), lead("d", "a"), lead("e", "f")]
    assert topics_to_pause(circle, (), ()) == {"e"}
    assert topics_to_pause([lead("a", "b"), lead("a", "c"), lead("c", "a")], (), ()) == set()


def test_a_batch_has_few_records_until_it_is_known_how_many_rows_of_a_grid_each_completes() -> None:
    limit = BatchLimit(make_settings(align=[{"name": "g", "grid": {"every": "1ms"}, "columns": {"speed": {}}}]))
    assert limit.records(30_000) == ROWS_MAX // 1001
    assert limit.records(100) == 100
    for _ in range(100):
        limit.note(100, 100, 1)
    assert limit.records(30_000) == 30_000
    limit.note(10, 1_000, 1)
    assert limit.records(30_000) == ROWS_MAX // 100
    limit.note(0, 0, 1)
    assert limit.records(30_000) == ROWS_MAX // 100
    limit.note(1, 2 * ROWS_MAX, 1)
    assert limit.records(30_000) == 1


def test_the_batches_of_other_units_do_not_hide_that_the_records_of_one_complete_many_rows() -> None:
    limit = BatchLimit(make_settings(align=[{"name": "g", "grid": {"every": "1ms"}, "columns": {"speed": {}}}]))
    for _ in range(10):
        limit.note(100, 100_000, 20)
        for _ in range(19):
            limit.note(100, 0, 20)
    assert ROWS_MAX // 1_000 <= limit.records(30_000) <= ROWS_MAX // 800
    # If the unit has no more records, the others are not held back for long.
    for _ in range(20 * 30):
        limit.note(100, 0, 20)
    assert limit.records(30_000) == 30_000


def test_a_batch_has_fewer_records_if_the_rows_of_a_grid_have_many_columns() -> None:
    columns: dict[str, dict[str, str]] = {f"c{number}": {} for number in range(97)}
    align = {"name": "g", "grid": {"every": "1ms", "max_gap": "9ms"}, "columns": columns}
    assert BatchLimit(make_settings(align=[align])).records(30_000) == ROWS_MAX * 4 // 100 // 10


def test_without_a_grid_a_batch_has_as_many_records_as_the_settings_say() -> None:
    limit = BatchLimit(make_settings())
    limit.note(10, 10_000, 1)
    assert limit.records(30_000) == 30_000
