"""Properties of every generated data set, whatever the seed and the shares."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.generate import QUANTITIES, Plan, generate, generate_events, main, write
from simulator.recording import read_head

SHARES = st.sampled_from([0.0, 0.01, 0.2, 0.5])
PLANS = st.builds(
    Plan,
    events=st.integers(0, 400),
    seed=st.integers(-(2**40), 2**70),
    machines=st.integers(1, 12),
    disorder=SHARES,
    lag_ms=st.integers(1, 20_000),
    repeats=SHARES,
    equal=SHARES,
    gaps=SHARES,
    gap_ms=st.integers(1, 100_000),
)
CLEAN = Plan(20_000, seed=3, disorder=0, repeats=0, equal=0, gaps=0)
BYTES_OF_SEED_7 = "c15c722b71b66e4a6e6d2c9c6db7c93e566226298eea023e3265ea63411078e4"


def times(events: list[dict[str, Any]]) -> list[int]:
    return [event["Timestamp"] for event in events]


def share_out_of_order(plan: Plan) -> float:
    latest, late = -(2**63), 0
    for now in times(list(generate_events(plan))):
        late += now < latest
        latest = max(latest, now)
    return late / plan.events


@given(PLANS)
def test_the_same_plan_gives_the_same_bytes(plan: Plan) -> None:
    assert list(generate(plan)) == list(generate(plan))


def test_the_bytes_of_a_seed_stay_the_same_between_versions() -> None:
    digest = hashlib.sha256(b"\n".join(generate(Plan(5_000, seed=7)))).hexdigest()
    assert digest == BYTES_OF_SEED_7


def test_another_seed_gives_other_events() -> None:
    one, other = (set(generate(Plan(1_000, seed=seed))) for seed in (1, 2))
    assert not one & other


@given(PLANS)
def test_every_line_is_an_event_of_the_recorded_form(plan: Plan) -> None:
    lines = list(generate(plan))
    assert len(lines) == plan.events
    for line in lines:
        assert read_head(line) is not None
        event = json.loads(line)
        assert json.dumps(event).encode() == line
        assert list(event)[:2] == ["Thing", "Timestamp"]
        assert list(event)[-1] == "id"
        assert len(event["id"]) == 36
        values = {name: value for name, value in event.items() if name not in {"Thing", "Timestamp", "id"}}
        assert values
        assert values.keys() <= set(QUANTITIES)
        assert all(type(value) is float for value in values.values())


@given(PLANS)
def test_an_id_comes_again_only_with_the_whole_event(plan: Plan) -> None:
    lines = {json.loads(line)["id"]: line for line in generate(plan)}
    assert all(lines[json.loads(line)["id"]] == line for line in generate(plan))


@given(PLANS)
def test_without_disorder_and_repeats_times_never_jump_back(plan: Plan) -> None:
    ordered = times(list(generate_events(replace(plan, disorder=0.0, repeats=0.0))))
    assert ordered == sorted(ordered)


@given(PLANS)
def test_nothing_is_later_than_the_lag(plan: Plan) -> None:
    # A late event is written after the first punctual event beyond its lag; only that event may be further ahead.
    latest, second = -(2**63), -(2**63)
    for now in times(list(generate_events(plan))):
        assert second <= now + plan.lag_ms
        latest, second = max(latest, now), max(second, min(latest, now))


@given(PLANS)
def test_a_longer_data_set_begins_with_the_shorter_one(plan: Plan) -> None:
    longer = generate(replace(plan, events=plan.events + 50))
    assert [line for line, _ in zip(longer, range(plan.events), strict=False)] == list(generate(plan))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5])
def test_the_share_of_disorder_is_the_one_asked_for(share: float) -> None:
    assert share_out_of_order(replace(CLEAN, disorder=share)) == pytest.approx(share, rel=0.15)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2])
def test_the_share_of_repeats_is_the_one_asked_for(share: float) -> None:
    counts = Counter(generate(replace(CLEAN, repeats=share)))
    repeats = sum(count - 1 for count in counts.values())
    # The share is relative to the original events. Relative to all lines it is share / (1 + share).
    assert repeats / CLEAN.events == pytest.approx(share / (1 + share), rel=0.15)
    assert max(counts.values()) <= 2


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2])
def test_the_share_of_equal_times_is_the_one_asked_for(share: float) -> None:
    events = list(generate_events(replace(CLEAN, equal=share)))
    seen = Counter((event["Thing"], event["Timestamp"]) for event in events)
    equal = sum(count - 1 for count in seen.values())
    assert equal / CLEAN.events == pytest.approx(share, rel=0.15)
    assert len({event["id"] for event in events}) == len(events)


def test_speed_and_torque_mostly_come_in_different_events_and_sometimes_in_one() -> None:
    speed = torque = both = 0
    for event in generate_events(CLEAN):
        speed += "actSpeed_C11" in event
        torque += "vaTorque_C11" in event
        both += "actSpeed_C11" in event and "vaTorque_C11" in event
    assert 0 < both < min(speed, torque) / 5


def test_gaps_make_a_quantity_silent_while_others_go_on() -> None:
    plan = replace(CLEAN, machines=1, gaps=0.002, gap_ms=60_000)
    seen = [event["Timestamp"] for event in generate_events(plan) if "actSpeed_C11" in event]
    usual = [event["Timestamp"] for event in generate_events(replace(plan, gaps=0.0)) if "actSpeed_C11" in event]
    assert max(b - a for a, b in pairwise(usual)) < 15_000 < max(b - a for a, b in pairwise(seen))


def test_speeds_drift_and_pause() -> None:
    speeds = [event["actSpeed_C11"] for event in generate_events(CLEAN) if "actSpeed_C11" in event]
    paused = sum(abs(speed) < 1 for speed in speeds)
    assert 0.05 < paused / len(speeds) < 0.6
    assert max(speeds) > 500


@given(st.integers(1, 200))
def test_there_are_as_many_machines_as_asked_for(machines: int) -> None:
    plan = replace(CLEAN, machines=machines, events=machines * 20)
    assert len({event["Thing"] for event in generate_events(plan)}) == machines


def test_a_plan_out_of_range_names_every_fault() -> None:
    with pytest.raises(ValueError, match=r"disorder.*repeats.*events.*machines"):
        Plan(events=-1, machines=0, disorder=1.5, repeats=float("nan"))


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.json"
    write(Plan(100, seed=1), path)
    before = path.read_bytes()
    assert before.splitlines() == list(generate(Plan(100, seed=1)))

    def broken(_: Plan) -> Any:
        yield b"{}"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("simulator.generate.generate", broken)
    assert main(["--out", str(path), "--events", "10"]) == 1
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_reports_wrong_settings_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "e"), "--disorder", "2", "--machines", "0"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "disorder" in said
    assert "machines" in said
    assert not list(tmp_path.iterdir())
