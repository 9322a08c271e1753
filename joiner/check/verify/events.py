"""Compares a replayed events file with the input topic, and determines what became of each quantity in each row.

Every row in the file must have reached Kafka: as records or, if it is not an event, as a dead letter. For every side of
a join or an align that selects it, each quantity has exactly one fate (see `FATES`). Quantities are counted once in the
file and once in the logs, and the two counts must agree.

Rows are parsed without the connector's code, according to the wire format: a row is one JSON object with ``Thing``,
``Timestamp`` and ``id``, and every other field is a quantity. An invalid quantity does not affect the others.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Never

from broker.times import parse_time
from broker.wire.records import (
    BRACKETS_MAX,
    COPIES_MAX,
    NAME_LENGTH_MAX,
    QUANTITIES_MAX,
    REFUSED_MAX,
    Record,
    encode,
)
from joiner.check.found.evidence import EvidenceError
from joiner.check.verify.outputs import joined_offsets, unmatched_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from joiner.check.found.evidence import Evidence
    from joiner.check.found.findings import Findings
    from joiner.check.verify.comparison import Outputs
    from joiner.check.verify.judgement import SideJudgement
    from joiner.check.verify.outputs import UnitResult
    from joiner.runtime.settings import JoinerSettings

IN_KAFKA: Final = "events in Kafka"
DEAD_LETTERS: Final = "rows that are not events"
ACCOUNTS: Final = "accounts of quantities"

FATES: Final = (
    "joined",
    "unmatched",
    "waiting",
    "late",
    "duplicate",
    "rejected",
    "not selected",
    "not consumed yet",
    "before the start",
    "lost before Kafka",
)
"""The possible fates of a quantity. Each quantity in the file has one of these for each side that selects it."""

NO_SIDE: Final = "no join"


class Quantity(NamedTuple):
    """A quantity in a row, with the values that must match between the file and Kafka."""

    thing: str
    quantity: str
    id: str
    time_ns: int
    value: float


class Row(NamedTuple):
    """A parsed row: its quantities, and the id prefixes of its expected dead letters."""

    quantities: list[Quantity]
    refused: list[str]


class _Number(str):
    """The exact text of a JSON number, because Python does not convert very long numbers to int."""

    __slots__ = ()


class _NoEventError(ValueError):
    """A row, or one of its quantities, is invalid."""


def parse_row(payload: bytes, time_unit: str, event_bytes_max: int) -> Row:
    """Return the expected outcome of a row. For an invalid row, this is a dead letter, not an exception."""
    whole = f"mqtt:{hashlib.sha256(payload).hexdigest()[:32]}"
    try:
        if len(payload) > event_bytes_max or payload.count(b"[") + payload.count(b"{") > BRACKETS_MAX:
            raise _NoEventError
        fields = _members(payload)
        thing, identity = _name(fields.pop("Thing", None)), _name(fields.pop("id", None))
        time_ns = _time(fields.pop("Timestamp", None), time_unit)
        copied = len(encode(thing)) + len(thing.encode()) + len(encode(identity))
        if not 0 < len(fields) <= QUANTITIES_MAX or len(fields) * copied > COPIES_MAX * len(payload):
            raise _NoEventError
    except (ValueError, RecursionError):
        return Row([], [whole])
    quantities, refused = [], []
    for name, value in fields.items():
        try:
            quantities.append(Quantity(thing, _name(name), identity, time_ns, _number(value)))
        except ValueError:
            refused.append(f"{whole}:{name[:NAME_LENGTH_MAX]}")
    return Row(quantities, refused if len(refused) <= REFUSED_MAX else [whole])


def _members(payload: bytes) -> dict[str, Any]:
    text = payload.decode("utf-8")
    # Decode objects to tuples of pairs and arrays to lists, to tell the two apart and to keep repeated names.
    pairs = json.loads(
        text, object_pairs_hook=tuple, parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant
    )
    if not isinstance(pairs, tuple):
        raise _NoEventError
    if "\\u" in text:
        _refuse_half_surrogates(pairs)
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _NoEventError
    return fields


def _refuse_half_surrogates(pairs: tuple[Any, ...]) -> None:
    """Raise ValueError for a lone surrogate, which is not valid Unicode. Only an escape sequence can produce one."""
    parts: list[Any] = list(pairs)
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            part.encode()
        elif isinstance(part, (tuple, list)):
            parts.extend(part)


def _refuse_constant(name: str) -> Never:
    raise _NoEventError(name)


def _name(value: object) -> str:
    if not isinstance(value, str) or isinstance(value, _Number) or not 0 < len(value) <= NAME_LENGTH_MAX:
        raise _NoEventError
    return value


def _time(value: object, time_unit: str) -> int:
    if not isinstance(value, str):
        raise _NoEventError
    return parse_time(value.encode() if isinstance(value, _Number) else value, time_unit)


def _number(value: object) -> float:
    if not isinstance(value, _Number):
        raise _NoEventError
    number = float(value)
    if not math.isfinite(number):
        raise _NoEventError
    return number


@dataclass
class _Account:
    """How many of the file's quantities one side selects (or no side selects), and how many had each fate."""

    selected: int = 0
    fates: Counter[str] = field(default_factory=Counter)


class EventsCheck:
    """Compares an events file with the data topic. Implements `joiner.check.verify.outputs.FurtherCheck`."""

    def __init__(self, file: Path, settings: JoinerSettings, evidence: Evidence) -> None:
        """Read ``file``. Raises `EvidenceError` if it cannot be read."""
        self._settings = settings
        self._evidence = evidence
        self._rows = 0
        self._open: Counter[Quantity] = Counter()
        self._refused: Counter[str] = Counter()
        self._redelivered = 0
        self._foreign: list[str] = []
        self._foreign_count = 0
        self._sides = [
            (f"{operator.name} {side}", stream.quantity)
            for operator in settings.operators
            for side, stream in operator.streams.items()
            if settings.selection(stream)["topic"] == settings.topics.data
        ]
        self._accounts = {name: _Account() for name in (*(name for name, _ in self._sides), NO_SIDE)}
        self._names_of: dict[str, list[str]] = {}
        try:
            with file.open("rb") as lines:
                self._read(line.removesuffix(b"\n") for line in lines)
        except OSError as error:
            message = f"the events file {file} cannot be read: {error.strerror}"
            raise EvidenceError(message) from error
        self._known = frozenset(self._open)
        self._quantities = self._open.total()

    def _read(self, payloads: Iterable[bytes]) -> None:
        unit, bytes_max = self._settings.events.time_unit, self._settings.events.event_bytes_max
        for payload in payloads:
            self._rows += 1
            row = parse_row(payload, unit, bytes_max)
            self._open.update(row.quantities)
            self._refused.update(row.refused)
            for quantity in row.quantities:
                for name in self._selecting(quantity.quantity):
                    self._accounts[name].selected += 1

    def _selecting(self, quantity: str) -> list[str]:
        """Return the names of the accounts in which a quantity is counted."""
        names = self._names_of.get(quantity)
        if names is None:
            names = [name for name, filter_ in self._sides if filter_ in {None, quantity}] or [NO_SIDE]
            self._names_of[quantity] = names
        return names

    def add_unit(self, result: UnitResult) -> None:
        """Look for the file's quantities in the unit's partition of the data topic, and count their fates."""
        topic, judgement = self._settings.topics.data, result.judgement
        fates = _Fates(result, topic)
        messages = self._evidence.whole_input(judgement.unit, topic)
        for entry in (entry for message in messages for entry in judgement.entries(message)):
            record = entry.content
            if not isinstance(record, Record):
                continue
            quantity = Quantity(record.thing, record.quantity, record.id, entry.ts, record.result)
            if self._open[quantity] > 0:
                self._open[quantity] -= 1
                for name in self._selecting(quantity.quantity):
                    self._accounts[name].fates[fates.of(entry.seq, name)] += 1
            elif quantity in self._known:
                self._redelivered += 1
            else:
                self._foreign_count += 1
                if len(self._foreign) < 100:  # noqa: PLR2004 - more than the examples shown
                    self._foreign.append(f"{entry.message.place}: {_shown(quantity)}")

    def conclude(self, outputs: Outputs, findings: Findings) -> None:
        """Report lost quantities, missing dead letters, and accounts that do not balance."""
        tally = findings.tally(IN_KAFKA)
        tally.expected = self._quantities
        for quantity, count in self._open.items():
            if count > 0:
                text = f"lost before Kafka: {_shown(quantity)}"
                findings.differ("missing", IN_KAFKA, "", text, count)
                for name in self._selecting(quantity.quantity):
                    self._accounts[name].fates["lost before Kafka"] += count
        tally.found = tally.expected - tally.missing
        self._conclude_refused(outputs, findings)
        for text in self._foreign:
            findings.example("not in the file", text)
        for name, account in self._accounts.items():
            if account.fates.total() != account.selected:
                text = f"{name}: the file has {account.selected}, but {account.fates.total()} are accounted for"
                findings.differ("altered", ACCOUNTS, "", text)
        findings.events = {
            "rows": self._rows,
            "quantities": self._quantities,
            "refused": self._refused.total(),
            "redelivered": self._redelivered,
            "not in the file": self._foreign_count,
            "accounts": {
                name: {"selected": account.selected, **{fate: account.fates[fate] for fate in FATES}}
                for name, account in self._accounts.items()
            },
        }

    def _conclude_refused(self, outputs: Outputs, findings: Findings) -> None:
        tally = findings.tally(DEAD_LETTERS)
        dead_letters = sorted({dead_letter.id for dead_letter in outputs.foreign_rejected})
        ids = frozenset(dead_letters)
        for wanted in self._refused:
            # In an id, the end of an overlong name is replaced by a hash.
            cut = len(wanted) > len("mqtt:") + 32 + NAME_LENGTH_MAX
            found = wanted in ids or (cut and any(dead_letter.startswith(wanted) for dead_letter in dead_letters))
            tally.expected += 1
            tally.found += found
            if not found:
                text = f"{self._settings.topics.rejected} has no dead letter {wanted}"
                findings.differ("missing", DEAD_LETTERS, "", text)


class _Fates:
    """Looks up the fate of each record of a unit by its position in the data topic."""

    def __init__(self, result: UnitResult, topic: str) -> None:
        self._judgement = result.judgement
        self._topic = topic
        self._start, self._stop = result.span.start.get(topic, 0), result.span.stop.get(topic, 0)
        self._sides: dict[str, tuple[SideJudgement, set[int], set[int]]] = {
            f"{side.join.name} {side.side}": (
                side,
                joined_offsets(result, side),
                unmatched_offsets(result, side),
            )
            for side in self._judgement.sides
        }

    def of(self, seq: int, name: str) -> str:
        """Return the fate of the record at position ``seq`` of the topic, or ``unaccounted`` if it has none.

        ``name``: a side that selects the record (for example ``gap left``), or `NO_SIDE`.
        """
        offset = self._judgement.offset(seq)
        if offset < self._start:
            return "before the start"
        if offset >= self._stop:
            return "not consumed yet"
        if (self._topic, seq) in self._judgement.rejected_places:
            return "rejected"
        if name == NO_SIDE:
            return "not selected"
        side, joined, unmatched = self._sides[name]
        positions_by_fate = {
            "late": side.late,
            "duplicate": side.duplicates,
            "joined": joined,
            "unmatched": unmatched,
            "waiting": side.accepted,
        }
        return next((fate for fate, positions in positions_by_fate.items() if seq in positions), "unaccounted")


def _shown(quantity: Quantity) -> str:
    return (
        f"thing {quantity.thing!r}, quantity {quantity.quantity!r}, id {quantity.id!r}, "
        f"time {quantity.time_ns} ns, value {quantity.value!r}"
    )
