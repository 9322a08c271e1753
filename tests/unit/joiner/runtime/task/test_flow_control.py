"""Which topics of a unit are paused until others catch up?"""

from __future__ import annotations

import pytest

from joiner.runtime.task.flow_control import Lead, topics_to_pause


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
