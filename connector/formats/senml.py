"""Parses SenML packs in JSON (RFC 8428): a list of records, in which base fields apply to all later records.

A pack is refused as a whole if it is not a list of objects, if a base field is wrong, or if it needs an extension that
this parser does not know. An unusable record does not affect the others: one refusal covers all of them. Records
without a number (strings, data and sums) are skipped and counted. Only a record that consists of base fields may have
no value at all.

The name of a measurement is its base name and its name, concatenated. It is split after its last ``:`` or ``/``,
wherever the base name ends, and nothing is left out. So a name always gives the same thing and quantity, and no other
name does.

The size of the output is linear in the size of the pack; see `connector.formats.contents.check_copies`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from typing import Final, NamedTuple

import msgspec

from broker.wire.records import BRACKETS_MAX, QUANTITIES_MAX, Record
from connector.formats.contents import (
    NO_NUMBER,
    RETAINED,
    Context,
    Found,
    Levels,
    check_copies,
    digest_of,
    parts_with,
    refused,
)
from connector.formats.events import UnusableError, measured, number_in, shown
from connector.templates import SenmlSettings

VERSION_MAX: Final = 10
"""The version of RFC 8428. A pack with a higher version may mean something else."""

RELATIVE_BELOW_S: Final = 2**28
"""A time below this many seconds is relative to now (RFC 8428, section 4.5.3)."""

UNNAMED: Final = "value"
"""Stands for ``{n}`` in records that have neither a name nor a unit."""

_TIME_MAX_S: Final = 1e11
"""Times further away than this (thousands of years) are refused before any computation with them."""

_TIME_MIN_S: Final = 1e-12
_NUMBER_LENGTH_MAX: Final = 400
_BASE_FIELDS: Final = frozenset({"bn", "bt", "bu", "bv", "bs", "bver"})
_OTHER_VALUES: Final = frozenset({"vs", "vd", "s"})

_DEPTH_MAX: Final = 32
"""How deep arrays and objects may be nested. A regular pack has a depth of two."""

_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_DEVICE_URN_PARTS: Final = 4
"""The URN of a device (RFC 9039) has these parts: urn, dev, the kind of its address, and the address."""

_packs = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_strings = msgspec.json.Decoder(str)
_booleans = msgspec.json.Decoder(bool)


class _Base(NamedTuple):
    """The base fields that apply to a record."""

    name: str = ""
    time: Decimal = Decimal(0)
    unit: str = ""
    value: float = 0


class SenmlParser:
    """Parses SenML packs."""

    def __init__(self, template: SenmlSettings, context: Context) -> None:
        self._template = template
        self._context = context
        self._used = [name for name in template.provided if f"{{{name}}}" in template.thing + template.quantity]

    def parse(self, levels: Levels, payload: bytes, *, is_retained: bool) -> Found:
        """Return the records in a pack, and a refusal for what cannot be used. Never raises.

        The records of a retained pack that have no absolute time are skipped: nobody knows when they were measured.
        """
        pack = _Pack(self._template, self._context, levels, payload)
        try:
            self._context.check_length(payload)
            pack.read(_records_of(payload), self._used, is_retained=is_retained)
            check_copies((record for _, record in pack.records), len(payload) + len(levels.topic.encode()))
        except UnusableError as error:
            return Found((refused(levels.topic, payload, str(error)),))
        parts = parts_with(pack.records, pack.reasons, "records of the pack", levels.topic, payload)
        return Found(parts, skipped=pack.skipped)


class _Pack:
    """The contents of a pack.

    ``records`` with their times in ns, the ``reasons`` of invalid ones, and how many were ``skipped``, by reason.
    """

    def __init__(self, template: SenmlSettings, context: Context, levels: Levels, payload: bytes) -> None:
        self.records: list[tuple[int, Record]] = []
        self.reasons: list[str] = []
        self.skipped: Counter[str] = Counter()
        self._template, self._context, self._levels = template, context, levels
        self._payload = payload
        self._digest = self._arrival = ""

    def read(self, records: list[dict[str, bytes]], used: list[str], *, is_retained: bool) -> None:
        """Read all records. ``used``: the names of a record that the template uses.

        Raises `UnusableError` if the whole pack is unusable.
        """
        base, now_ns = _Base(), self._context.now_ns()
        for place, fields in enumerate(records):
            base = _next_base(base, fields, place)
            if fields and fields.keys() <= _BASE_FIELDS:
                continue
            try:
                self._add(base, fields, place, now_ns, used, is_retained=is_retained)
            except UnusableError as error:
                self.reasons.append(f"record {place}: {error}")

    def _add(
        self, base: _Base, fields: dict[str, bytes], place: int, now_ns: int, used: list[str], *, is_retained: bool
    ) -> None:
        value = _value_of(base, fields)
        if value is None:
            self.skipped[NO_NUMBER] += 1
            return
        time_s = base.time + (_seconds(fields["t"], "t") if "t" in fields else 0)
        is_relative = time_s < RELATIVE_BELOW_S
        if is_relative and is_retained:
            self.skipped[RETAINED] += 1
            return
        time_ns = round(time_s * 10**9)
        if is_relative:
            time_ns = (now_ns + time_ns) // self._context.unit_ns * self._context.unit_ns
        time = self._context.time_of(time_ns)
        names = self._levels.named | _names(base, fields, used)
        thing = measured(self._template.thing.format_map(names), "the thing (bn, or the MQTT topic)")
        quantity = measured(self._template.quantity.format_map(names), "the quantity")
        self.records.append((time_ns, Record(thing, quantity, time, value, self._id(place, is_relative=is_relative))))

    def _id(self, place: int, *, is_relative: bool) -> str:
        """Return an id: that of the payload if it also says the time, so that a second copy is recognised."""
        if is_relative:
            self._arrival = self._arrival or self._context.arrival_id()
            return f"{self._arrival}-{place}"
        self._digest = self._digest or digest_of(self._levels.topic, self._payload)
        return f"{self._digest}-{place}"


def _records_of(payload: bytes) -> list[dict[str, bytes]]:
    """Return the exact JSON text of each field of each record. Raises `UnusableError`."""
    if not payload:
        raise UnusableError("the payload is empty")
    if payload.count(b"[") > BRACKETS_MAX or payload.count(b"{") > QUANTITIES_MAX + BRACKETS_MAX:
        message = f"the payload has more than {QUANTITIES_MAX} records, or more than {BRACKETS_MAX} further brackets"
        raise UnusableError(message)
    if _is_deep(payload):
        message = f"the payload has arrays or objects that are nested more than {_DEPTH_MAX} deep"
        raise UnusableError(message)
    try:
        payload.decode()  # the decoder does not check the values that it keeps as raw text
        records = [{name: bytes(raw) for name, raw in one.items()} for one in _packs.decode(payload)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"not a SenML pack, which is a JSON array of records: {error}"
        raise UnusableError(reason) from error
    if not records:
        raise UnusableError("the pack has no records")
    if len(records) > QUANTITIES_MAX:
        message = f"the pack has {len(records)} records, more than {QUANTITIES_MAX}"
        raise UnusableError(message)
    _refuse_repeated_fields(payload, records)
    return records


def _is_deep(payload: bytes) -> bool:
    """Return whether arrays and objects are nested more than `_DEPTH_MAX` deep.

    Checked before decoding: otherwise, the depth that a decoder accepts depends on the process.
    """
    if payload.translate(None, _NO_BRACKETS).replace(b"{}", b"") == b"[]":
        return False
    depth = 0
    for bracket in _STRINGS.sub(b"", payload).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > _DEPTH_MAX:
            return True
    return False


def _refuse_repeated_fields(payload: bytes, records: list[dict[str, bytes]]) -> None:
    """Raise `UnusableError` if a field is repeated within a record: the decoder keeps only the last."""
    fields = sum(map(len, records))
    in_values = sum(text.count(b":") for one in records for text in one.values())
    if payload.count(b":") == fields + in_values and not any(":" in name for one in records for name in one):
        return
    try:
        found = json.loads(payload, object_pairs_hook=list, parse_int=len, parse_float=len)
    except ValueError as error:
        reason = f"not a SenML pack, which is a JSON array of records: {error}"
        raise UnusableError(reason) from error
    for place, (pairs, one) in enumerate(zip(found, records, strict=True)):
        if len(pairs) != len(one):
            message = f"record {place}: a field occurs more than once"
            raise UnusableError(message)


def _next_base(base: _Base, fields: dict[str, bytes], place: int) -> _Base:
    """Return the base fields for a record. Raises `UnusableError`, because an error affects all later records too."""
    for name in fields:
        if name.endswith("_"):
            message = f"record {place}: the field {shown(name)} is an extension that must be understood, but is not"
            raise UnusableError(message)
    try:
        if "bver" in fields and number_in(fields["bver"], "bver") > VERSION_MAX:
            message = f"bver is {shown(fields['bver'])}, a later version than {VERSION_MAX}"
            raise UnusableError(message)
        return _Base(
            _text(fields["bn"], "bn") if "bn" in fields else base.name,
            _seconds(fields["bt"], "bt") if "bt" in fields else base.time,
            _text(fields["bu"], "bu") if "bu" in fields else base.unit,
            number_in(fields["bv"], "bv") if "bv" in fields else base.value,
        )
    except UnusableError as error:
        message = f"record {place}: {error}"
        raise UnusableError(message) from error


def _value_of(base: _Base, fields: dict[str, bytes]) -> float | None:
    """Return the number in a record, or None if it has another value. Raises `UnusableError`."""
    if len(fields.keys() & {"v", "vb", "vs", "vd"}) > 1:
        raise UnusableError("it has more than one value")
    if not fields.keys() & {"v", "vb"}:
        if fields.keys() & _OTHER_VALUES:
            return None
        raise UnusableError("it has no value (v, vb, vs, vd or s)")
    if "vb" in fields:
        try:
            return int(_booleans.decode(fields["vb"]))
        except ValueError as error:
            message = f"vb must be true or false, not {shown(fields['vb'])}"
            raise UnusableError(message) from error
    value = number_in(fields["v"], "v")
    if not base.value:
        return value
    total = float(value) + float(base.value)
    if total in {float("inf"), float("-inf")}:
        raise UnusableError("the sum of bv and v is beyond the range of a 64-bit float")
    is_exact = isinstance(value, int) and isinstance(base.value, int) and abs(total) < 2**53
    return int(total) if is_exact else total


def _names(base: _Base, fields: dict[str, bytes], used: list[str]) -> dict[str, str]:
    """Return what stands for each of the names in a template. Raises `UnusableError` if one that is used is empty."""
    name = base.name + (_text(fields["n"], "n") if "n" in fields else "")
    is_device = name.startswith("urn:dev:") and name.count(":") < _DEVICE_URN_PARTS and "/" not in name
    cut = len(name) if is_device else max(name.rfind(":"), name.rfind("/")) + 1
    found = {"bn": name[:cut], "n": name[cut:], "name": name}
    if is_device or not name:
        found["n"] = (_text(fields["u"], "u") if "u" in fields else base.unit) or UNNAMED
    for one in used:
        if not found[one]:
            message = (
                f"its name (bn and n) is {shown(name)}, which gives no {{{one}}}, because it is split after its last : "
                "or /: set thing and quantity to levels of the MQTT topic, or use {name}"
            )
            raise UnusableError(message)
    return found


def _text(text: bytes, what: str) -> str:
    try:
        found: str = _strings.decode(text)
    except ValueError as error:
        message = f"{what} must be a string, not {shown(text)}"
        raise UnusableError(message) from error
    return found


def _seconds(text: bytes, what: str) -> Decimal:
    """Return a time in seconds, exactly. Raises `UnusableError`."""
    value = number_in(text, what)
    if abs(value) > _TIME_MAX_S or len(text) > _NUMBER_LENGTH_MAX:
        message = f"{what} is {shown(text)}, which is no usable time in seconds"
        raise UnusableError(message)
    return Decimal(text.decode()) if abs(value) > _TIME_MIN_S else Decimal(0)
