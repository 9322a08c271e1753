"""Do all services that have read the same audit topic agree on what was ordered and what came of it?"""

from __future__ import annotations

import pytest

from control.actions.audit import Asked, Ended, Record, Refused, Reported, decode, encode
from control.actions.history import ACTIONS_MAX, History
from tests.unit.control.audited import MOVE


def asked(action: str, key: str = "k", by: str = "otto") -> Asked:
    return Asked(action=action, key=key, by=by, service="s1", order=MOVE)


def history_of(*records: Record) -> History:
    made = History()
    for offset, record in enumerate(records):
        made.apply(record, offset, 1_000 + offset)
    return made


def test_an_action_is_known_from_its_order_to_its_outcome() -> None:
    history = history_of(asked("a"), Reported(action="a", text="unit 0: requested"), Reported(action="a"))
    (action,) = history.actions
    assert (action.state, action.by, action.asked_ms, action.ended_ms) == ("running", "otto", 1_000, None)
    assert [report.text for report in action.reports] == ["unit 0: requested"]
    assert history.running() == {"a": ("s1", 2)}
    history.apply(Ended(action="a", state="done", text="all there"), 3, 2_000)
    (action,) = history.actions
    assert (action.state, action.text, action.ended_ms) == ("done", "all there", 2_000)
    assert history.running() == {}


def test_of_two_requests_with_one_key_the_first_counts() -> None:
    history = history_of(asked("a"), asked("b"))
    assert [action.id for action in history.actions] == ["a"]
    found = history.with_key("otto", "k")
    assert found is not None
    assert found.id == "a"


def test_a_key_belongs_to_its_user() -> None:
    history = history_of(asked("a"), asked("b", by="ada"))
    assert [action.id for action in history.actions] == ["a", "b"]
    assert history.with_key("vera", "k") is None


@pytest.mark.parametrize(
    ("first", "second", "state"),
    [
        ("done", "failed", "done"),
        ("failed", "done", "failed"),
        ("done", "interrupted", "done"),
        ("interrupted", "done", "done"),
        ("interrupted", "interrupted", "interrupted"),
    ],
)
def test_the_first_outcome_counts_but_one_that_is_known_replaces_one_that_is_not(
    first: str, second: str, state: str
) -> None:
    history = history_of(
        asked("a"), Ended(action="a", state=first, text=first), Ended(action="a", state=second, text=second)
    )
    (action,) = history.actions
    assert (action.state, action.text) == (state, state)


def test_what_is_read_twice_changes_nothing() -> None:
    records: list[Record] = [asked("a"), Reported(action="a", text="step"), Refused(by="otto", order=MOVE, why="no")]
    history = history_of(*records)
    for offset, record in enumerate(records):
        history.apply(record, offset, 1_000 + offset)
    assert [len(action.reports) for action in history.actions] == [1]
    assert len(history.refusals) == 1


def test_a_topic_that_was_created_anew_is_read() -> None:
    history = history_of(asked("a"), asked("b", "k2"))
    history.apply(asked("c", "k3"), 0, 9_000)
    assert [action.id for action in history.actions] == ["a", "b", "c"]


def test_memory_is_bounded_and_the_newest_are_kept() -> None:
    history = history_of(*(asked(f"a{number}", f"k{number}") for number in range(ACTIONS_MAX + 5)))
    assert len(history.actions) == ACTIONS_MAX
    assert history.actions[0].id == "a5"
    assert history.with_key("otto", "k4") is None
    for offset in range(2_000):
        history.apply(Reported(action="a9", text=f"{offset}"), ACTIONS_MAX + 5 + offset, 5_000)
        history.apply(Refused(by="otto", order=MOVE, why="no"), ACTIONS_MAX + 5 + offset, 5_001)
    action = history.get("a9")
    assert action is not None
    assert (len(action.reports), action.reports[-1].text, len(history.refusals)) == (200, "1999", 100)


def test_records_of_nothing_known_are_ignored() -> None:
    history = history_of(Reported(action="x", text="t"), Ended(action="x", state="done", text="t"))
    assert (history.actions, history.running()) == ([], {})


@pytest.mark.parametrize("value", [None, b"", b"{}", b"\xff", b'{"kind":"new","format":1}', b"[" * 100_000])
def test_what_is_no_record_is_none(value: bytes | None) -> None:
    assert decode(value) is None


def test_a_record_of_a_later_format_is_skipped() -> None:
    value = encode(asked("a"))
    assert decode(value) == asked("a")
    assert decode(value.replace(b'{"kind"', b'{"format":2,"kind"')) is None
