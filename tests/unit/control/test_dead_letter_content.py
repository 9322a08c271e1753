"""Does the page of the dead letters say what is known, in texts that look like what they are?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from control.actions import dead_letter_contents
from control.actions.dead_letter_contents import DeadLetterContents
from control.facts.dead_letters import LETTERS_MAX, DeadLetterIndex, describe
from control.page import dead_letter_content as content
from joiner.runtime.kafka.batches.registry import SchemaUnavailable
from tests.manual_clock import ManualClock
from tests.unit.control.letters_made import NOW_MS, letter_text
from tests.unit.joiner.runtime.joiner_inputs import make_settings

SETTINGS = make_settings(partitions=2)


def kept(*texts: bytes) -> DeadLetterIndex:
    letters = DeadLetterIndex()
    letters.renew(NOW_MS, "")
    letters.add(describe(SETTINGS, 1, offset, NOW_MS + offset, text)[0] for offset, text in enumerate(texts))
    return letters


def test_a_dead_letter_has_a_row() -> None:
    page = kept(letter_text(b"{}", "wrong"), letter_text(b"{}", source="connector", partition=-1, offset=-1)).page(
        None, 9
    )
    newest, oldest = content.letter_rows(page)
    assert oldest == {
        "key": "1/0",
        "time (UTC)": "2019-04-01 05:27:50.000",
        "source": "lsb",
        "reason": "wrong",
        "from": "machine.data [0] 3",
        "bytes": 2,
        "put back": "possible",
    }
    assert (newest["from"], newest["put back"]) == ("machine.data", "no")
    assert set(content.LETTER_COLUMNS) - {"show"} == set(oldest) - {"key"}
    row = content.letter_rows(kept(letter_text(b"", row=5)).page(None, 9))[0]
    assert row["from"] == "machine.data [0] 3.5"
    garbage = content.letter_rows(kept(b"x").page(None, 9))[0]
    assert (garbage["source"], garbage["from"]) == ("unknown", "unknown")


def test_the_summary_says_how_many_there_are() -> None:
    assert content.summary(DeadLetterIndex().page(None, 1)) == ""
    assert content.summary(kept().page(None, 1)) == "There are no dead letters."
    page = kept(letter_text(b""), letter_text(b"", source="connector")).page(None, 1, "lsb")
    assert content.summary(page) == "1 of 2 dead letters"
    assert content.summary(msgspec.structs.replace(page, kept=LETTERS_MAX)) == "1 of the last 10,000 dead letters"
    assert content.describe_reasons(page) == ["1 from lsb: a reason"]


def test_the_details_are_all_that_is_known_without_the_contents() -> None:
    (letter,) = kept(letter_text(b"{}", "wrong", source="connector")).page(None, 1).letters
    assert content.details(letter) == [
        "Reason: wrong",
        "Source: connector",
        "Input: machine.data [0] 3, 2 bytes",
        "Id: machine.data:0:3",
        "Written: 2019-04-01 05:27:50.000 UTC, at offset 0 of partition 1",
        "It cannot be put back: it came over MQTT or from a file: publish or import the corrected event again",
    ]


def test_the_notes_say_what_the_contents_lack_and_what_would_become_of_them() -> None:
    (letter,) = kept(letter_text(b"{}")).page(None, 1).letters
    whole = DeadLetterContents(letter, "{}", "utf-8", is_whole=True, unchanged="")
    assert content.notes(whole) == ["It can be put back as it is."]
    part = DeadLetterContents(letter, "/w==", "base64", is_whole=False, unchanged="no good")
    assert content.notes(part) == [
        "It cannot be put back as it is: no good",
        "Only the beginning is kept.",
        "It is not text, and is shown in base64.",
    ]
    refused = msgspec.structs.replace(letter, refusal="never")
    assert content.notes(msgspec.structs.replace(whole, letter=refused, unchanged="never")) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 'é' 機械 <b>", "plain 'é' 機械 <b>"),
        ("a\u202eb\u200bc", "a\\u202eb\\u200bc"),
        ("a\x00b\x1b[31m\nc", "a\\x00b\\x1b[31m\\nc"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_characters_without_a_shape_are_shown_as_escapes(text: str, shown: str) -> None:
    assert content.visible(text) == shown
    row = content.letter_rows(kept(letter_text(b"", text, source=text, topic=text)).page(None, 1))[0]
    assert (row["source"], row["reason"]) == (shown, shown)
    assert row["from"].startswith(shown)


def test_lines_of_contents_stay_lines() -> None:
    assert content.visible("{\n\t1\r\n}", "\n\t") == "{\n\t1\\r\n}"


class Stored:
    """A message in the dead-letter topic, and the consumer that reads it."""

    def timestamp(self) -> tuple[int, int]:
        return 1, NOW_MS

    def value(self) -> bytes:
        return letter_text(b"{}", "wrong")

    def close(self) -> None:
        """Close nothing."""


def test_a_letter_is_shown_even_if_its_schema_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def candidate_of(*_: Any) -> str:
        raise SchemaUnavailable("the registry is away")

    monkeypatch.setattr(dead_letter_contents, "make_reader", lambda *_: Stored())
    monkeypatch.setattr(dead_letter_contents, "read_message", lambda *_: Stored())
    monkeypatch.setattr(dead_letter_contents, "candidate_of", candidate_of)
    found = dead_letter_contents.read_contents(SETTINGS, ManualClock(), 0, 0)
    assert (found.unchanged, found.value, found.letter.reason) == ("the registry is away", "{}", "wrong")
