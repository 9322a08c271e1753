"""An application's last dead letters, without their contents: the reasons, and whether they can be put back.

`DeadLetterIndex` keeps a bounded number of them in memory. It neither reads from Kafka nor uses a clock.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from broker.wire.records import Rejected, decode_rejected

if TYPE_CHECKING:
    from joiner.runtime.settings import JoinerSettings

LETTERS_MAX: Final = 10_000
"""How many dead letters are kept. Older ones are forgotten."""

PAGE_MAX: Final = 200
"""The maximum number of dead letters on a page."""

GROUPS_MAX: Final = 50
"""The maximum number of groups of reasons on a page, and of sources."""

_TEXT_MAX: Final = 300
"""Longer texts are cut."""

_READ_MAX: Final = 2_000
"""How much of a reason is searched for varying parts."""

_CONNECTOR: Final = "connector"
_DB_CONNECTOR: Final = "db_connector"
"""The sources that are not applications."""

_VARYING: Final = re.compile(r"""(?<!\w)'(?:[^'\\]|\\.)*(?:'|$)|(?<!\w)"(?:[^"\\]|\\.)*(?:"|$)|\d+(?:\.\d+)?""")
_INT64: Final = range(-1, 2**63)

_AT_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last one Python supports."""


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The message that a dead letter comes from, and the row in it, or None if the whole message was rejected."""

    partition: int
    offset: int
    row: int | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    """What is known about a dead letter without its contents. Texts over 300 characters are cut, and end in "…".

    ``number``: counts the letters read since the service started, from 1; 0 if the letter is not kept. ``partition``,
    ``offset``: where the letter itself is in the dead-letter topic. ``at_ms``: when Kafka appended it, since the epoch.
    ``kind``: the reason without its numbers and quotations, which vary from letter to letter. ``topic``, ``origin``:
    where the rejected input comes from; ``origin`` is None if that is not a message in Kafka, or not known.
    ``length``: the length of the input in bytes. ``refusal``: why it can never be put back, and what to do instead, or
    an empty string.
    """

    number: int
    partition: int
    offset: int
    at_ms: int
    source: str
    reason: str
    kind: str
    id: str
    topic: str
    origin: Origin | None
    length: int
    refusal: str


class ReasonCount(msgspec.Struct, frozen=True):
    """How many of a source's kept dead letters have reasons of a kind."""

    source: str
    kind: str
    count: int


class DeadLetterPage(msgspec.Struct, frozen=True):
    """A page of dead letters, newest first.

    ``next``: the value of ``before`` for the next page, or None if there are no older ones. ``matching``: how many
    match the filters, of ``kept`` in all. ``sources``: how many of all kept ones come from each source. ``reasons``:
    the most frequent kinds of reasons, from the given source, if any. ``read_ms``: when the topic was last read to its
    end, in ms since the epoch, or None if it never was. ``trouble``: why it cannot be read now, or an empty string.
    """

    letters: list[DeadLetter]
    next: int | None
    matching: int
    kept: int
    sources: dict[str, int]
    reasons: list[ReasonCount]
    read_ms: int | None
    trouble: str


class DeadLetterIndex:
    """An application's last dead letters. Thread-safe."""

    def __init__(self) -> None:
        self._letters: deque[DeadLetter] = deque(maxlen=LETTERS_MAX)
        self._number = 0
        self._read_ms: int | None = None
        self._trouble = "Kafka has not answered yet"
        self._lock = threading.Lock()

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Keep more dead letters, and number them."""
        with self._lock:
            for letter in letters:
                self._number += 1
                self._letters.append(msgspec.structs.replace(letter, number=self._number))

    def clear(self) -> None:
        """Forget all dead letters, because their topic is gone. Numbers are not reused."""
        with self._lock:
            self._letters.clear()

    def renew(self, read_ms: int, trouble: str) -> None:
        """Note that the topic was read to its end at ``read_ms``, or why it was not if there is a ``trouble``."""
        with self._lock:
            self._trouble = trouble
            if not trouble:
                self._read_ms = read_ms

    def report(self, trouble: str) -> None:
        """Note why the topic cannot be read."""
        with self._lock:
            self._trouble = trouble

    def page(self, before: int | None, limit: int, source: str = "", reason: str = "") -> DeadLetterPage:
        """Return up to ``limit`` dead letters with numbers below ``before`` (None: the newest).

        ``source``: only those from this source. ``reason``: only those whose reason, or its kind, contains this text,
        ignoring case. If empty, a filter matches all.
        """
        with self._lock:
            letters, read_ms, trouble = list(self._letters), self._read_ms, self._trouble
        of_source = [one for one in reversed(letters) if source in {"", one.source}]
        wanted = reason.casefold()
        found = [
            one for one in of_source if not wanted or wanted in one.reason.casefold() or wanted in one.kind.casefold()
        ]
        older = found if before is None else [one for one in found if one.number < before]
        shown = older[:limit]
        kinds = Counter((one.source, one.kind) for one in of_source)
        return DeadLetterPage(
            letters=shown,
            next=shown[-1].number if len(older) > len(shown) else None,
            matching=len(found),
            kept=len(letters),
            sources=dict(Counter(one.source for one in letters).most_common(GROUPS_MAX)),
            reasons=[ReasonCount(*kind, count) for kind, count in kinds.most_common(GROUPS_MAX)],
            read_ms=read_ms,
            trouble=trouble,
        )


def describe(
    settings: JoinerSettings, partition: int, offset: int, at_ms: int, value: bytes | None
) -> tuple[DeadLetter, Rejected | None]:
    """Return what is known about a message of the topic, and its contents, or None if it is not a dead letter."""
    at_ms = min(max(at_ms, 0), _AT_MS_MAX)  # a topic that no service created may contain arbitrary times
    try:
        found = _decode(value)
    except ValueError as error:
        reason = f"the message is not a dead letter: {error}"
        refusal = "it is not a dead letter: find out what writes to the dead-letter topic"
        length = len(value or b"")
        texts = _cut(reason), _kind(reason)
        return DeadLetter(0, partition, offset, at_ms, "", *texts, "", "", None, length, _cut(refusal)), None
    is_message = found.partition >= 0 and found.offset >= 0
    letter = DeadLetter(
        number=0,
        partition=partition,
        offset=offset,
        at_ms=at_ms,
        source=_cut(found.source),
        reason=_cut(found.reason),
        kind=_kind(found.reason),
        id=_cut(found.id),
        topic=_cut(found.topic),
        origin=Origin(found.partition, found.offset, found.row if found.row >= 0 else None) if is_message else None,
        length=found.length,
        refusal=_cut(refusal_of(settings, found)),
    )
    return letter, found


def refusal_of(settings: JoinerSettings, letter: Rejected) -> str:
    """Return why a dead letter can never be put back, and what to do instead, or an empty string."""
    if letter.source == settings.application.name:
        return _refusal_of_own(settings, letter)
    others = {
        _CONNECTOR: "it came over MQTT or from a file: publish or import the corrected event again",
        _DB_CONNECTOR: "the database did not get this result: fix the cause, then have the database connector write "
        "the results in the log again, with another consumer group",
    }
    return others.get(letter.source, f"the application {_cut(letter.source)!r} rejected it, and must put it back")


def _refusal_of_own(settings: JoinerSettings, letter: Rejected) -> str:
    topics, refusal = settings.topics, ""
    if letter.offset < 0:
        refusal = (
            "a function failed for records that have been joined: correct the function; a recomputation "
            "(`joiner reset`) then produces this result too"
        )
    elif letter.row >= 0 or topics.has_rows:
        refusal = "messages in Arrow hold many records: produce the corrected record in a new message"
    elif letter.topic not in settings.input_topics:
        refusal = f"the application does not read the topic {_cut(letter.topic)!r}: produce the record again"
    elif letter.partition not in range(topics.partitions):
        refusal = f"the topics of the application have no partition {letter.partition}: produce the record again"
    elif letter.id != f"{letter.topic}:{letter.partition}:{letter.offset}":
        refusal = "its id does not name its record, so the joiner did not write it: find out what did"
    return refusal


def whole_value(letter: Rejected) -> bytes | None:
    """Return the rejected input if the dead letter contains all of it unchanged, or else None."""
    try:
        value = letter.value.encode() if letter.encoding == "utf-8" else base64.b64decode(letter.value, validate=True)
    except ValueError:
        return None
    is_whole = len(value) == letter.length and hashlib.sha256(value).hexdigest() == letter.sha256
    return value if is_whole else None


def _decode(value: bytes | None) -> Rejected:
    """Decode a message of the topic. Raises ValueError if it is not a dead letter, or if a number is meaningless."""
    try:
        found = decode_rejected(value or b"")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if any(number not in _INT64 for number in (found.partition, found.offset, found.row, found.length)):
        raise ValueError("a position or its length is out of range")
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"


def _kind(reason: str) -> str:
    """Return a reason without its numbers and quotations."""
    return _cut(_VARYING.sub(lambda found: "#" if found[0][0].isdigit() else "'…'", reason[:_READ_MAX]))
