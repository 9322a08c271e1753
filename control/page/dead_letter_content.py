"""The contents of the dead letters page, as texts. Does not use NiceGUI."""

from __future__ import annotations

from typing import Final

from control.actions.dead_letter_contents import DeadLetterContents
from control.facts.dead_letters import LETTERS_MAX, DeadLetter, DeadLetterPage, ReasonCount
from control.page.content import Row, moment

LETTER_COLUMNS: Final = ("time (UTC)", "source", "reason", "from", "bytes", "put back", "show")
"""The last column contains a button."""

REASONS_SHOWN: Final = 8


def letter_rows(page: DeadLetterPage) -> list[Row]:
    """Return a row for each dead letter of a page."""
    return [
        {
            "key": key_of(letter),
            "time (UTC)": moment(letter.at_ms),
            "source": visible(letter.source) or "unknown",
            "reason": visible(letter.reason),
            "from": visible(_origin(letter)),
            "bytes": letter.length,
            "put back": "no" if letter.refusal else "possible",
        }
        for letter in page.letters
    ]


def key_of(letter: DeadLetter) -> str:
    """Return the place of a dead letter in its topic, which identifies it."""
    return f"{letter.partition}/{letter.offset}"


def summary(page: DeadLetterPage) -> str:
    """Return a sentence that says how many dead letters there are."""
    if page.read_ms is None and not page.kept:
        return ""
    if not page.kept:
        return "There are no dead letters."
    kept = f"the last {page.kept:,} dead letters" if page.kept == LETTERS_MAX else f"{page.kept:,} dead letters"
    return f"{page.matching:,} of {kept}"


def describe_reasons(page: DeadLetterPage) -> list[str]:
    """Return a text for each of the most frequent kinds of reasons."""
    return [_reason_text(one) for one in page.reasons[:REASONS_SHOWN]]


def details(letter: DeadLetter) -> list[str]:
    """Return what is known about a dead letter without its contents, as lines."""
    lines = [
        f"Reason: {letter.reason}",
        f"Source: {letter.source or 'unknown'}",
        f"Input: {_origin(letter)}, {letter.length:,} bytes",
        f"Id: {letter.id}" if letter.id else "",
        f"Written: {moment(letter.at_ms)} UTC, at offset {letter.offset} of partition {letter.partition}",
        f"It cannot be put back: {letter.refusal}" if letter.refusal else "",
    ]
    return [visible(line) for line in lines if line]


def notes(contents: DeadLetterContents) -> list[str]:
    """Return notes on the contents of a dead letter, as lines."""
    lines = []
    if not contents.letter.refusal:
        lines.append(
            f"It cannot be put back as it is: {contents.unchanged}"
            if contents.unchanged
            else "It can be put back as it is."
        )
    if not contents.is_whole:
        lines.append("Only the beginning is kept.")
    if contents.encoding != "utf-8":
        lines.append(f"It is not text, and is shown in {contents.encoding}.")
    return [visible(line) for line in lines]


def visible(text: str, kept: str = "") -> str:
    r"""Return a text with each unprintable character replaced by an escape, such as ``\u202e``.

    Such characters may make a text look like a different one. ``kept``: characters that are not replaced.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in kept else one.encode("unicode_escape").decode("ascii") for one in text
    )


def _origin(letter: DeadLetter) -> str:
    origin = letter.origin
    if origin is None:
        return letter.topic or "unknown"
    row = "" if origin.row is None else f".{origin.row}"
    return f"{letter.topic} [{origin.partition}] {origin.offset}{row}"


def _reason_text(one: ReasonCount) -> str:
    return visible(f"{one.count:,} from {one.source or 'unknown'}: {one.kind}")
