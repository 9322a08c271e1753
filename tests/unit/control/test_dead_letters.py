"""Is what is kept of dead letters bounded, right, and free of their contents, whatever the topic contains?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from broker.wire.records import REJECTED_BYTES_MAX, decode_rejected, encode, reject
from control.facts import dead_letters as module
from control.facts.dead_letters import DeadLetterIndex, Origin, describe, refusal_of, whole_value
from tests.unit.control.letters_made import letter_text, record_text
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings

SETTINGS = make_settings(partitions=2)


def kept(*texts: bytes | None) -> DeadLetterIndex:
    letters = DeadLetterIndex()
    letters.add(describe(SETTINGS, 0, offset, 1_000 + offset, text)[0] for offset, text in enumerate(texts))
    return letters


def test_a_dead_letter_is_described_without_its_contents() -> None:
    text = letter_text(b'{"thing":"secret"}', "Object missing required field `id`", row=2)
    letter, content = describe(SETTINGS, 1, 7, 5_000, text)
    assert content == decode_rejected(text)
    assert (letter.partition, letter.offset, letter.at_ms, letter.source) == (1, 7, 5_000, "lsb")
    assert (letter.topic, letter.origin, letter.length) == (DATA, Origin(0, 3, 2), 18)
    assert (letter.id, letter.reason) == (f"{DATA}:0:3.2", "Object missing required field `id`")
    assert b"secret" not in msgspec.json.encode(letter)
    without, _ = describe(SETTINGS, 1, 7, 5_000, letter_text(b"{}", partition=-1, offset=-1, source="connector"))
    assert without.origin is None


def garbage() -> Iterator[bytes | None]:
    """Yield messages that are no dead letters."""
    yield from (None, b"", b"\xff", b"null", b"[]", b"{}", b'{"id":1}', b"[" * 100_000, b'{"a":' * 100_000)
    given = json.loads(letter_text(b"{}"))
    for name in ("id", "source", "reason", "topic", "length", "sha256", "encoding", "value"):
        yield json.dumps({one: value for one, value in given.items() if one != name}).encode()
    for name in ("partition", "offset", "row", "length"):
        for value in (2**63, -2, -(2**70), 10**300, 1.5, "1"):
            yield json.dumps(given | {name: value}).encode()
    yield letter_text(b"{}")[:-5]
    yield letter_text(b"{}") + b"x"


def test_a_message_that_is_no_dead_letter_is_named_as_such_and_can_be_shown() -> None:
    found = [describe(SETTINGS, 0, offset, 0, text) for offset, text in enumerate(garbage())]
    assert [content for _, content in found if content is not None] == []
    for letter, _ in found:
        assert "not a dead letter" in letter.reason
        assert "not a dead letter" in letter.refusal
    letters = DeadLetterIndex()
    letters.add(letter for letter, _ in found)
    assert len(msgspec.json.decode(msgspec.json.encode(letters.page(None, 200)))["letters"]) == len(found)


@pytest.mark.parametrize("at_ms", [-(2**63), -1, 0, 2**63 - 1])
def test_any_time_can_be_shown(at_ms: int) -> None:
    letter, _ = describe(SETTINGS, 0, 0, at_ms, letter_text(b"{}"))
    assert 0 <= letter.at_ms <= 253_402_300_799_999


def test_long_texts_are_cut_with_a_mark_so_that_memory_is_bounded() -> None:
    long = "x" * 100_000
    text = encode(reject(b"", "r", source=long, topic=long, partition=0, offset=1, identity=long))
    text = text.replace(b'"reason":"r"', f'"reason":"{long}"'.encode())
    letter, _ = describe(SETTINGS, 0, 0, 0, text)
    for shown in (letter.source, letter.topic, letter.id, letter.reason, letter.kind):
        assert (len(shown), shown[-1]) == (300, "…")
    assert len(msgspec.json.encode(letter)) < 3_000
    letter, _ = describe(SETTINGS, 0, 0, 0, letter_text(b"", long, source=long))
    assert len(letter.refusal) <= 300


def test_only_the_last_ones_are_kept_and_numbers_are_never_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LETTERS_MAX", 3)
    letters = kept(*[letter_text(b"{}")] * 5)
    page = letters.page(None, 10)
    assert [one.number for one in page.letters] == [5, 4, 3]
    assert (page.kept, page.matching, page.next) == (3, 3, None)
    letters.clear()
    assert letters.page(None, 10).letters == []
    letters.add([describe(SETTINGS, 0, 0, 0, b"")[0]])
    assert [one.number for one in letters.page(None, 10).letters] == [6]


def test_pages_follow_each_other_without_gaps_although_new_ones_arrive() -> None:
    letters = kept(*[letter_text(b"{}")] * 7)
    first = letters.page(None, 3)
    letters.add([describe(SETTINGS, 0, 9, 0, letter_text(b"{}"))[0]])
    second = letters.page(first.next, 3)
    third = letters.page(second.next, 3)
    found = [one.number for page in (first, second, third) for one in page.letters]
    assert (found, third.next) == ([7, 6, 5, 4, 3, 2, 1], None)
    assert [one.number for one in letters.page(None, 3).letters] == [8, 7, 6]
    assert letters.page(1, 3).letters == []


def test_filters_choose_by_source_and_by_any_part_of_the_reason_or_its_kind() -> None:
    letters = kept(
        letter_text(b"1", "thing 'R1' belongs to partition 3, but the message is in partition 0"),
        letter_text(b"2", "thing 'R2' belongs to partition 4, but the message is in partition 0"),
        letter_text(b"3", "Field Type conflict", source="db_connector"),
        b"garbage",
    )

    def numbers(source: str = "", reason: str = "") -> list[int]:
        return [one.number for one in letters.page(None, 10, source, reason).letters]

    assert numbers() == [4, 3, 2, 1]
    assert numbers(source="lsb") == [2, 1]
    assert numbers(reason="FIELD type") == [3]
    assert numbers(reason="'R2'") == [2]
    assert numbers(source="lsb", reason="field type") == []
    page = letters.page(None, 1, "lsb", "'R2'")
    # Other reasons can still be chosen.
    assert [(one.source, one.count) for one in page.reasons] == [("lsb", 2)]
    assert numbers(source="lsb", reason=page.reasons[0].kind) == [2, 1]
    assert (page.matching, page.kept, page.sources) == (1, 4, {"lsb": 2, "db_connector": 1, "": 1})


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (
            "its time is 86401 s ahead of its arrival, more than application.max_future_skew allows",
            "its time is # s ahead of its arrival, more than application.max_future_skew allows",
        ),
        ("thing 'it\\'s 1' belongs to partition 3", "thing '…' belongs to partition #"),
        ('thing "R\'1" belongs to partition 3', "thing '…' belongs to partition #"),
        ("it isn't a number, and doesn't end: 'abc", "it isn't a number, and doesn't end: '…'"),
        ("Object missing required field `id`", "Object missing required field `id`"),
        ("12.5 of 3", "# of #"),
    ],
)
def test_reasons_that_differ_in_numbers_and_quotations_are_of_one_kind(reason: str, kind: str) -> None:
    assert describe(SETTINGS, 0, 0, 0, letter_text(b"", reason))[0].kind == kind


def test_the_groups_are_bounded_however_many_reasons_and_sources_there_are() -> None:
    texts = [letter_text(b"", "abc"[n % 3] * (n + 1), source=f"s{'x' * n}") for n in range(120)]
    page = kept(*texts).page(None, 200)
    assert (len(page.reasons), len(page.sources), len(page.letters)) == (50, 50, 120)


def test_troubles_are_told_until_the_topic_is_read_again() -> None:
    letters = DeadLetterIndex()
    assert (letters.page(None, 1).read_ms, letters.page(None, 1).trouble) == (None, "Kafka has not answered yet")
    letters.renew(5, "")
    assert (letters.page(None, 1).read_ms, letters.page(None, 1).trouble) == (5, "")
    letters.report("gone")
    assert (letters.page(None, 1).read_ms, letters.page(None, 1).trouble) == (5, "gone")


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({}, ""),
        ({"source": "connector", "topic": "machine/states", "partition": -1, "offset": -1}, "publish or import"),
        ({"source": "db_connector", "topic": "machine.out"}, "with another consumer group"),
        ({"source": "other"}, "the application 'other' rejected it"),
        ({"topic": "machine.out", "offset": -1, "identity": "power:0:1:2"}, "correct the function"),
        ({"row": 0}, "in a new message"),
        ({"topic": "machine.former"}, "does not read the topic 'machine.former'"),
        ({"partition": 2}, "have no partition 2"),
        ({"partition": -1}, "have no partition -1"),
        ({"identity": "x"}, "its id does not name its record"),
    ],
)
def test_what_can_never_be_put_back_says_why_and_what_to_do_instead(changed: dict[str, Any], refusal: str) -> None:
    found = refusal_of(SETTINGS, decode_rejected(letter_text(record_text(), **changed)))
    assert refusal in found
    assert bool(refusal) == bool(found)


def test_records_of_an_application_that_reads_arrow_cannot_be_put_back() -> None:
    settings = make_settings(topics={"partitions": 2, "data_format": "arrow"})
    assert "Arrow" in refusal_of(settings, decode_rejected(letter_text(record_text())))


@pytest.mark.parametrize("value", [b"", b"{}", b"\xff\x00", "é".encode(), b"x" * REJECTED_BYTES_MAX])
def test_the_whole_value_is_what_was_rejected(value: bytes) -> None:
    assert whole_value(decode_rejected(letter_text(value))) == value


def test_a_value_that_was_cut_or_changed_is_not_whole() -> None:
    cut = decode_rejected(letter_text(b"x" * (REJECTED_BYTES_MAX + 1)))
    good = decode_rejected(letter_text(b"abc"))
    wrong: list[dict[str, Any]] = [
        {"value": "abd"},
        {"length": 4},
        {"sha256": "0" * 64},
        {"encoding": "base64"},
        {"encoding": "base64", "value": "é"},
        {"encoding": "base64", "value": "YWJj\n!"},
    ]
    for letter in (cut, *(msgspec.structs.replace(good, **one) for one in wrong)):
        assert whole_value(letter) is None
