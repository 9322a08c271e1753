"""Are the records of one thing found in messages, as the joiner would select them?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from control.facts.lookup.records import ShownRecord, Subject, records_in
from tests.unit.joiner.runtime.arrow_inputs import arrow_message, settings_of
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, GAP, POWER, Message, make_settings, message, record

MS = 1_000_000


class Consumed:
    """A message as a consumer returns it."""

    def __init__(self, of: Message) -> None:
        self._of = of

    def offset(self) -> int:
        return self._of.offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._of.append_ms

    def key(self) -> bytes | None:
        return b"not needed"

    def value(self) -> bytes | None:
        return self._of.value


def found_in(subject: Subject, messages: Sequence[Message], consumed: int = 0) -> dict[str, list[ShownRecord]]:
    return records_in(subject, DATA, [Consumed(one) for one in messages], consumed)


def subject_of(number: int = 0, thing: str = "a") -> Subject:
    settings = make_settings(POWER, GAP)
    return Subject(settings, settings.join[number], thing)


def test_the_records_of_a_thing_are_found_on_the_sides_that_select_them() -> None:
    sent = [
        record(3, "speed", BASE_MS + 1, 1.5, "a"),
        record(4, "torque", BASE_MS + 2, 2.5, "a"),
        record(7, "speed", BASE_MS + 3, 3.5, "b"),
        record(8, "command", BASE_MS + 4, 4.5, "a"),
        message(9, {"mark": BASE_MS, "quantity": "speed"}),
        message(10, b"no JSON"),
        message(11, None),
        record(12, "speed", BASE_MS, 5.5, "a"),
    ]
    left = [
        ShownRecord("3", (BASE_MS + 1) * MS, 1.5, BASE_MS, is_consumed=True),
        ShownRecord("12", BASE_MS * MS, 5.5, BASE_MS, is_consumed=False),
    ]
    right = [ShownRecord("4", (BASE_MS + 2) * MS, 2.5, BASE_MS, is_consumed=True)]
    assert found_in(subject_of(), sent, consumed=12) == {"left": left, "right": right}
    assert [one.position for one in found_in(subject_of(1), sent)["left"]] == ["8"]
    assert [one.position for one in found_in(subject_of(1), sent)["right"]] == ["3", "12"]
    assert found_in(subject_of(0, "c"), sent) == {"left": [], "right": []}
    assert found_in(subject_of(), []) == {}


def test_a_record_from_the_future_is_none_for_the_joiner_and_is_not_shown() -> None:
    day_ms = 86_400_000
    sent = [record(0, "speed", BASE_MS + day_ms, 1.0, "a"), record(1, "speed", BASE_MS + day_ms + 1, 1.0, "a")]
    assert [one.position for one in found_in(subject_of(), sent)["left"]] == ["0"]


@pytest.mark.parametrize("with_ids", [False, True])
def test_the_position_of_a_record_among_many_has_its_row(*, with_ids: bool) -> None:
    settings = settings_of("arrow", POWER)
    rows = [
        {"thing": thing, "quantity": quantity, "phenomenonTime": BASE_MS + at, "result": float(at), "id": f"e{at}"}
        for at, (thing, quantity) in enumerate([("a", "speed"), ("b", "speed"), ("a", "torque"), ("a", "speed")])
    ]
    value = arrow_message(rows, with_ids=with_ids)
    sent = [Message(5, BASE_MS + 7, value), Message(6, BASE_MS + 8, b"no Arrow"), Message(9, BASE_MS + 9, value)]
    found = found_in(Subject(settings, settings.join[0], "a"), sent, consumed=9)
    shown = [(one.position, one.value, one.at_ms, one.is_consumed) for one in found["left"]]
    assert shown == [
        ("5.0", 0.0, BASE_MS + 7, True),
        ("5.3", 3.0, BASE_MS + 7, True),
        ("9.0", 0.0, BASE_MS + 9, False),
        ("9.3", 3.0, BASE_MS + 9, False),
    ]
    assert [one.position for one in found["right"]] == ["5.2", "9.2"]


def test_a_subject_knows_its_unit_and_what_it_reads() -> None:
    settings = make_settings(POWER | {"right": {"topic": "other"}}, partitions=5)
    subject = Subject(settings, settings.join[0], "a")
    assert 0 <= subject.unit < 5
    assert [(subject.topic(side), subject.name(side)) for side in ("left", "right")] == [
        (DATA, "speed"),
        ("other", "other"),
    ]
