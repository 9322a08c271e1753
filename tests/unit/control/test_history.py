"""Do all services that have read the same audit topic agree on what was ordered and what came of it?"""

from __future__ import annotations

import pytest

from control.actions.audit import Asked, Doubted, Ended, Record, Refused, Reported, decode, encode
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
    (action,) = history.actions()
    assert (action.state, action.by, action.asked_ms, action.ended_ms) == ("running", "otto", 1_000, None)
    assert [report.text for report in action.reports] == ["unit 0: requested"]
    assert {name: (known.service, known.offset) for name, known in history.running().items()} == {"a": ("s1", 2)}
    history.apply(Ended(action="a", state="done", text="all there"), 3, 2_000)
    (action,) = history.actions()
    assert (action.state, action.text, action.ended_ms) == ("done", "all there", 2_000)
    assert history.running() == {}


def test_of_two_requests_with_one_key_the_first_counts() -> None:
    history = history_of(asked("a"), asked("b"))
    assert [action.id for action in history.actions()] == ["a"]
    found = history.with_key("otto", "k")
    assert found is not None
    assert found.id == "a"


def test_a_key_belongs_to_its_user() -> None:
    history = history_of(asked("a"), asked("b", by="ada"))
    assert [action.id for action in history.actions()] == ["a", "b"]
    assert history.with_key("vera", "k") is None


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (("done", False), ("failed", False), "first"),
        (("failed", False), ("done", True), "first"),
        (("interrupted", True), ("done", False), "second"),
        (("done", True), ("failed", False), "second"),
        (("interrupted", True), ("done", True), "first"),
    ],
)
def test_the_first_outcome_counts_unless_the_service_itself_reports_one(
    first: tuple[str, bool], second: tuple[str, bool], text: str
) -> None:
    outcomes = [
        Ended(action="a", state=state, text=name, is_inferred=is_inferred)
        for name, (state, is_inferred) in (("first", first), ("second", second))
    ]
    (action,) = history_of(asked("a"), *outcomes).actions()
    assert (action.state, action.text) == ((first if text == "first" else second)[0], text)


def test_a_doubt_lasts_until_something_is_reported() -> None:
    history = history_of(asked("a"), Doubted(action="a"))
    assert history.running()["a"].is_doubted
    history.apply(Reported(action="a"), 2, 2_000)
    assert not history.running()["a"].is_doubted


def test_what_is_read_twice_changes_nothing() -> None:
    records: list[Record] = [asked("a"), Reported(action="a", text="step"), Refused(by="otto", order=MOVE, why="no")]
    history = history_of(*records)
    for offset, record in enumerate(records):
        history.apply(record, offset, 1_000 + offset)
    assert [len(action.reports) for action in history.actions()] == [1]
    assert len(history.refusals) == 1


def test_a_topic_that_was_created_anew_is_read() -> None:
    history = history_of(asked("a"), asked("b", "k2"))
    assert not history.apply(asked("c", "k3"), 0, 9_000)
    history.begin_anew()
    assert history.apply(asked("c", "k3"), 0, 9_000)
    assert [action.id for action in history.actions()] == ["a", "b", "c"]


def test_memory_is_bounded_and_the_newest_are_kept() -> None:
    records: list[Record] = [asked("running", "first")]
    for number in range(ACTIONS_MAX + 4):
        records += [asked(f"a{number}", f"k{number}"), Ended(action=f"a{number}", state="done", text="")]
    history = history_of(*records)
    assert len(history.actions()) == ACTIONS_MAX
    # What runs is not forgotten.
    assert [action.id for action in history.actions()[:2]] == ["running", "a5"]
    assert history.with_key("otto", "k4") is None
    for offset in range(2_000):
        history.apply(Reported(action="running", text=f"{offset}"), 10_000 + 2 * offset, 5_000)
        history.apply(Refused(by="otto", order=MOVE, why="no"), 10_001 + 2 * offset, 5_001)
    action = history.get("running")
    assert action is not None
    assert (len(action.reports), action.reports[-1].text, len(history.refusals)) == (200, "1999", 100)


def test_records_of_nothing_known_are_ignored() -> None:
    history = history_of(Reported(action="x", text="t"), Ended(action="x", state="done", text="t"))
    assert (history.actions(), history.running()) == ([], {})


@pytest.mark.parametrize("value", [None, b"", b"{}", b"\xff", b'{"kind":"new","format":1}', b"[" * 100_000])
def test_what_is_no_record_is_none(value: bytes | None) -> None:
    assert decode(value) is None


def test_a_record_of_a_later_format_is_skipped() -> None:
    value = encode(asked("a"))
    assert decode(value) == asked("a")
    assert decode(value.replace(b'{"kind"', b'{"format":2,"kind"')) is None
