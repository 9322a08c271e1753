"""Are the states of followed units kept up to date, and handed to claims?"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.model import UnitStopped
from joiner.runtime.ownership.eligibility import TopicUnknown
from joiner.runtime.ownership.followers import BEHIND_S, INTERVAL_S, UNSERVED_S
from tests.unit.joiner.runtime.ownership.followed_site import Site

KAFKA_IS_AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - the public name


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def test_a_unit_is_warm_once_its_state_is_built_and_follows_its_owner(site: Site) -> None:
    site.followers.poll({0, 1})
    assert site.followers.warm == set()
    assert len(site.pool.waiting) == 1, "one state is built after another"
    for _ in range(2):
        site.pool.run()
        site.followers.poll({0, 1})
    assert site.followers.warm == {0, 1}
    assert not site.pool.waiting
    site.clock.now_s += INTERVAL_S
    site.poll(0, 1)
    taken: Any = site.followers.take(1)
    assert taken is not None
    assert taken.unit == 1, "a number stands in for a state"
    assert site.followers.warm == {0}


def test_a_unit_is_prepared_before_it_counts_as_warm_and_once_a_minute_after_that(site: Site) -> None:
    site.followers.poll({0})
    assert (site.prepared, site.followers.warm) == ([], set())
    site.pool.run()
    assert (site.prepared, site.followers.warm) == ([0], set())
    for _ in range(2 * 60 * 5):
        site.poll(0)
        site.clock.now_s += INTERVAL_S
    assert site.prepared == [0, 0]
    assert site.followers.warm == {0}


def test_a_unit_without_a_state_is_not_prepared(site: Site) -> None:
    site.run = ""
    site.poll(0)
    site.owner_site, site.run = "another", "run of the owner"
    site.clock.now_s += UNSERVED_S
    site.poll(0)
    assert site.prepared == []


@pytest.mark.parametrize(("commit_interval", "interval_s"), [("1ms", 0.2), ("300ms", 0.3), ("1min", 0.5)])
def test_a_state_is_updated_about_as_often_as_its_owner_commits(
    monkeypatch: pytest.MonkeyPatch, commit_interval: str, interval_s: float
) -> None:
    site = Site(monkeypatch, commit_interval)
    for passed_s, lag_s in ((0.0, 0.0), (interval_s - 0.01, interval_s - 0.01), (0.01, 0.0)):
        site.clock.now_s += passed_s
        site.poll(0)
        assert site.followers.lags_s() == {0: pytest.approx(lag_s)}


def test_a_unit_that_is_claimed_soon_keeps_its_state_until_it_is_taken(site: Site) -> None:
    site.poll(0)
    site.clock.now_s += INTERVAL_S
    site.poll(claimed_soon=frozenset({0}))
    assert (site.followers.warm, site.closed, site.pool.waiting) == ({0}, [], [])
    assert site.followers.take(0) is not None
    assert site.followers.take(0) is None
    site.poll()
    assert site.closed == [], "the claim closes it"


def test_a_unit_that_is_no_longer_followed_is_closed_also_in_the_middle_of_a_step(site: Site) -> None:
    site.poll(0, 1)
    site.clock.now_s += INTERVAL_S
    site.followers.poll({0, 1})
    site.pool.begin()
    site.followers.poll({1})
    assert site.closed == []
    site.pool.run()
    site.followers.poll({1})
    assert (site.closed, site.ended_early) == ([0], [0])
    site.followers.close()
    site.pool.run()
    site.followers.close()
    assert site.closed == [0, 1]


def test_a_step_that_has_not_begun_never_runs_once_its_unit_is_no_longer_followed(site: Site) -> None:
    site.poll(0)
    site.clock.now_s += INTERVAL_S
    site.followers.poll({0})
    site.followers.poll(frozenset())
    assert site.closed == [0]
    site.pool.run()
    assert site.ended_early == []


def test_a_first_build_ends_early_once_the_unit_is_claimed_instead(site: Site) -> None:
    site.followers.poll({0})
    site.pool.begin()
    assert site.followers.take(0) is None
    site.pool.run()
    assert site.ended_early == [0]


def test_a_unit_is_not_built_again_while_an_earlier_build_of_it_is_ending(site: Site) -> None:
    site.followers.poll({0})
    site.pool.begin()
    for _ in range(5):
        site.followers.poll(frozenset())
        site.followers.poll({0})
    assert len(site.pool.waiting) == 1
    site.pool.run()
    site.poll(0)
    assert (site.ended_early, site.followers.warm) == ([0], {0})


def test_a_state_that_cannot_be_kept_warm_is_built_anew_later(site: Site) -> None:
    site.poll(0)
    site.fault = UnitStopped("cannot be built")
    site.clock.now_s += INTERVAL_S
    site.poll(0)
    assert (site.followers.warm, site.closed) == (set(), [0])
    assert not site.pool.waiting, "the state that was dropped is not followed further"
    site.fault = None
    site.poll(0)
    assert site.followers.warm == set(), "not at once"
    site.clock.now_s += 10
    site.poll(0)
    assert site.followers.warm == {0}


@pytest.mark.parametrize(
    "basis",
    [
        ({"data": 5}, {"data": "id"}, "fingerprint"),
        ({"data": 0}, {"data": "another id"}, "fingerprint"),
        ({"data": 0}, {"data": "id"}, "another fingerprint"),
    ],
)
def test_a_unit_that_was_reset_is_not_warm(site: Site, basis: Any) -> None:
    site.poll(0)
    site.basis = basis
    site.clock.now_s += INTERVAL_S
    site.poll(0)
    assert site.followers.warm == set()


def test_a_unit_that_another_site_serves_is_not_followed_until_it_comes_back(site: Site) -> None:
    site.poll(0)
    site.owner_site = "spark"
    site.clock.now_s += INTERVAL_S
    for _ in range(5):
        site.poll(0)
        assert (site.followers.warm, site.followers.lags_s()) == (set(), {})
        site.followers.poll({0})
        assert not site.pool.waiting, "not at once again"
        site.clock.now_s += UNSERVED_S
    assert (site.closed, site.followers.unable) == ([0], set())
    assert site.followers.take(0) is None
    site.owner_site = "process"
    site.poll(0)
    assert site.followers.warm == {0}


def test_a_unit_that_was_never_claimed_can_be_claimed_at_any_time_and_is_looked_at_now_and_then(site: Site) -> None:
    site.run = ""
    site.poll(0)
    assert site.followers.warm == {0}
    site.clock.now_s += INTERVAL_S
    site.followers.poll({0})
    assert not site.pool.waiting
    site.run = "run of the owner"
    site.clock.now_s += UNSERVED_S
    site.poll(0)
    assert site.followers.take(0) is not None


def test_a_state_that_cannot_keep_up_is_not_counted_on_until_it_is_current_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.poll(0)
    site.clock.now_s += INTERVAL_S
    site.followers.poll({0})
    site.clock.now_s += BEHIND_S + 0.1
    site.followers.poll({0})
    assert site.followers.warm == set()
    assert site.followers.lags_s() == {0: pytest.approx(BEHIND_S + INTERVAL_S + 0.1)}
    assert caplog.text.count("cannot keep up") == 1
    site.pool.run()
    site.followers.poll({0})
    site.clock.now_s += INTERVAL_S
    site.poll(0)
    assert site.followers.warm == {0}
    assert caplog.text.count("has caught up again") == 1


def test_a_state_that_takes_long_to_build_is_warm_once_it_has_caught_up(site: Site) -> None:
    site.followers.poll({0})
    site.clock.now_s += 10 * BEHIND_S
    site.pool.run()
    site.followers.poll({0})
    assert site.followers.warm == set()
    site.poll(0)
    assert site.followers.warm == {0}


@pytest.mark.parametrize(
    ("fault", "is_transient"),
    [
        (KeyError("data"), False),
        (ValueError("data"), False),
        (UnitStopped("no"), False),
        (MemoryError(), True),
        (OSError("no more files"), True),
        (RuntimeError("can't start new thread"), True),
        (KafkaException(KafkaError(1)), True),
    ],
)
def test_no_error_of_a_standby_affects_the_units_that_are_served(
    site: Site, fault: Exception, *, is_transient: bool
) -> None:
    site.fault = fault
    for _ in range(5):
        site.poll(0)
        site.clock.now_s += 10
    assert site.followers.warm == set()
    assert site.followers.unable == (set() if is_transient else {0})
    site.fault = None
    site.poll(0)
    assert (site.followers.warm, site.followers.unable) == ({0}, set())


def test_a_unit_whose_state_cannot_be_built_is_tried_again_less_and_less_often(site: Site) -> None:
    site.fault = UnitStopped("no")
    lasted_s = []
    for _ in range(6):
        while 0 not in site.followers.unable:
            site.poll(0)
            site.clock.now_s += 5
        began_s = site.clock.now_s
        # It is not asked for meanwhile, because other instances are told.
        site.poll()
        while site.followers.unable:
            site.clock.now_s += 5
        lasted_s.append(site.clock.now_s - began_s)
    assert [round(lasts_s, -1) for lasts_s in lasted_s] == pytest.approx([60, 120, 240, 480, 960, 960], abs=10)
    site.fault = None
    site.poll(0)
    site.poll(0)
    assert site.followers.warm == {0}


def test_a_unit_whose_state_could_not_be_built_is_tried_again_at_once_by_order(site: Site) -> None:
    site.fault = UnitStopped("no")
    for _ in range(3):
        site.poll(0)
        site.clock.now_s += 10
    assert site.followers.unable == {0}
    site.poll(0)
    site.followers.retry({0, 1})
    assert site.followers.unable == set()
    for _ in range(2):
        site.poll(0)
        site.followers.retry({0})
    assert site.followers.unable == set(), "earlier failures do not count"
    site.fault = None
    site.poll(0)
    assert site.followers.warm == {0}


def test_a_state_that_is_warm_stays_as_it_is_when_it_is_to_be_tried_again(site: Site) -> None:
    site.poll(0)
    site.followers.retry({0})
    assert site.followers.warm == {0}
    site.followers.poll({0})
    assert (site.pool.waiting, site.closed) == ([], [])


def test_the_stack_trace_of_a_defect_is_logged_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for fault in (UnitStopped("no"), KeyError("data"), ValueError("other")):
        site.fault = fault
        for _ in range(3):
            site.poll(0)
            site.clock.now_s += 10
    with_trace = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert with_trace == ["'data'", "other"]


def test_a_passing_obstacle_does_not_make_a_unit_impossible(site: Site) -> None:
    site.fault = TopicUnknown("the broker has just started")
    for _ in range(5):
        site.poll(0)
        site.clock.now_s += 10
    assert site.followers.unable == set()


def test_a_state_outlasts_an_outage_of_kafka(site: Site) -> None:
    site.poll(0)
    site.fault = KAFKA_IS_AWAY
    for _ in range(5):
        site.clock.now_s += 10
        site.poll(0)
    assert (site.followers.warm, site.closed) == (set(), [])
    site.fault = None
    site.clock.now_s += 10
    site.poll(0)
    assert (site.followers.warm, site.closed) == ({0}, [])
    taken: Any = site.followers.take(0)
    assert taken.unit == 1


def test_a_claim_takes_a_state_that_could_not_be_kept_current(site: Site) -> None:
    site.poll(0)
    site.fault = KAFKA_IS_AWAY
    site.clock.now_s += INTERVAL_S
    site.followers.poll({0})
    site.pool.run()
    assert site.followers.take(0) is not None
    assert site.closed == []


def test_a_claim_does_not_take_a_state_that_an_error_may_have_left_half_changed(site: Site) -> None:
    site.poll(0)
    site.fault = KeyError("data")
    site.clock.now_s += INTERVAL_S
    site.followers.poll({0})
    site.pool.run()
    assert site.followers.take(0) is None
    site.poll()
    assert site.closed == [0]


def test_a_claim_ends_the_step_in_progress_and_takes_the_state(site: Site) -> None:
    site.poll(0)
    site.clock.now_s += INTERVAL_S
    site.followers.poll({0})
    site.pool.begin()
    site.clock.while_waiting = site.pool.run
    assert site.followers.take(0) is not None
    assert (site.ended_early, site.closed) == ([0], [])


def test_a_claim_does_not_take_a_state_that_a_step_may_still_change(site: Site) -> None:
    site.poll(0)
    site.clock.now_s += INTERVAL_S
    site.followers.poll({0})
    site.pool.begin()
    assert site.followers.take(0) is None
    site.poll()
    assert (site.ended_early, site.closed) == ([0], [0])


def test_a_first_build_that_ends_while_a_claim_waits_for_it_is_taken(site: Site) -> None:
    site.followers.poll({0})
    site.pool.begin()
    site.clock.while_waiting = site.pool.run
    assert site.followers.take(0) is not None
    assert (site.ended_early, site.closed) == ([], [])


def test_a_step_that_has_not_begun_costs_a_claim_nothing(site: Site) -> None:
    site.poll(0)
    site.clock.now_s += INTERVAL_S
    site.followers.poll({0})
    assert len(site.pool.waiting) == 1
    assert site.followers.take(0) is not None
