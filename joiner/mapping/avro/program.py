"""Finds the scalars of many Avro data at once.

A schema is compiled to a program, whose instructions say what follows in the data. A loop, which is compiled to machine
code, executes it for each datum. It checks the datum as `reading` does, and stores where the wanted scalars are and
which branches the unions have. Data that it does not understand are not necessarily invalid: they are decoded by
`reading`. A schema in which a record contains itself, and one that is too large or too deep, have no program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numba import types

from broker.wire.columns import StringColumn
from broker.wire.compiled import BYTES, BYTES_OUT, COLUMNS_OUT, INTS, INTS_OUT, byte_at, compiled
from broker.wire.texts import is_plain, is_utf8
from joiner.mapping.avro.reading import DECIMAL_BYTES_MAX, VALUES_PER_BYTE
from joiner.mapping.avro.schema import AvroType
from joiner.mapping.documents import DEPTH_MAX
from joiner.mapping.layouts import DOUBLE, ENUM, FLOAT, LONG, OPAQUE, OTHER, STRING, Found, Scalar

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]

INSTRUCTIONS_MAX: Final = 5_000
"""The maximum number of instructions. A record takes its own in each place where it is."""

SCALARS_MAX: Final = 500
"""The maximum number of wanted scalars."""

Position = tuple[str | int, ...]

_Instruction = list[int]

# The instructions, with their operands. `slot` is the number of a wanted scalar, or negative.
_VARINT: Final = 0  # slot, number of bits
_SKIP: Final = 1  # slot, size: a number of bytes
_BOOLEAN: Final = 2  # slot
_COUNTED: Final = 3  # slot, maximum or 0: a length, and as many bytes
_TEXT: Final = 4  # slot: a length, and as many bytes of UTF-8
_INDEX: Final = 5  # slot, count: a number below the count
_BRANCH: Final = 6  # number of the union, count, index of the first target: a branch, and a jump to its instructions
_JUMP: Final = 7  # target
_BLOCK: Final = 8  # target, level, values in an item: how many items follow, or a jump if there are none
_NEXT: Final = 9  # first instruction of an item, level, instruction of the block

_LEVELS_MAX: Final = DEPTH_MAX
_VARINT_BYTES_MAX: Final = 10
_MISSING: Final = -1
_INT_BITS, _LONG_BITS = 32, 64

_NESTING: Final = frozenset({"record", "array", "map"})
_KINDS: Final = {"int": LONG, "long": LONG, "float": FLOAT, "double": DOUBLE, "string": STRING, "enum": ENUM}


class _Choice(NamedTuple):
    """A union in a plan. ``number``: its index among the unions whose branches matter."""

    number: int
    branches: list[Any]


class Program:
    """A compiled schema. ``types``: the type of each wanted scalar."""

    def __init__(self, schema: AvroType, wanted: Sequence[Position]) -> None:
        """``wanted``: the positions of the values that are needed. Raises ValueError if there is no program."""
        compiler = _Compiler(wanted)
        self._plan = compiler.add(schema, ())
        self.types = compiler.types
        self._unions = compiler.unions
        self._code = np.array(compiler.code or [[_SKIP, _MISSING, 0, 0]], dtype=np.int64)
        self._targets = np.array(compiler.targets, dtype=np.int64)

    @property
    def width(self) -> int:
        """How many scalars and branches are located in each message."""
        return len(self.types) + self._unions

    def run(self, data: StringColumn) -> Found:
        """Find the scalars of data."""
        count = len(data)
        spans = np.zeros((2 * len(self.types), count), dtype=np.int64)
        branches = np.zeros((self._unions, count), dtype=np.int64)
        is_read = np.zeros(count, dtype=np.uint8)
        start, end = np.ascontiguousarray(data.start), np.ascontiguousarray(data.end)
        _run(data.data, start, end, self._code, self._targets, spans, branches, is_read)
        return Found(is_read.astype(bool), spans, branches)

    def skeleton(self, branches: Sequence[int]) -> Any:
        """Return the document of data whose unions have these branches, with a `Scalar` in the place of each scalar."""
        return _resolve(self._plan, branches)


def _resolve(plan: Any, branches: Sequence[int]) -> Any:
    if isinstance(plan, _Choice):
        return _resolve(plan.branches[branches[plan.number]], branches)
    return {name: _resolve(one, branches) for name, one in plan.items()} if isinstance(plan, dict) else plan


class _Compiler:
    def __init__(self, wanted: Sequence[Position]) -> None:
        self._wanted = wanted
        self._around: list[AvroType] = []
        self.code: list[_Instruction] = []
        self.targets: list[int] = []
        self.types: list[AvroType] = []
        self.unions = 0

    def add(self, given: AvroType, position: Position | None, level: int = 0) -> Any:
        """Add the instructions for a type, and return its plan. ``position``: None inside of arrays and maps."""
        if given in self._around:
            message = "the schema has a record that contains itself"
            raise ValueError(message)
        if sum(one.kind in _NESTING for one in self._around) == DEPTH_MAX and given.kind in _NESTING:
            message = "the schema is nested too deeply"
            raise ValueError(message)
        self._around.append(given)
        match given.kind:
            case "record":
                plan: Any = {name: self.add(one, _part(position, name), level) for name, one in given.fields}
            case "union":
                plan = self._add_union(given, position, level)
            case "array" | "map" if given.items is not None:
                plan = self._add_blocks(given.kind, given.items, level)
            case _:
                plan = self._add_scalar(given, position)
        self._around.pop()
        return plan

    def _add_scalar(self, given: AvroType, position: Position | None) -> Any:
        if given.kind == "null":
            return None
        is_wanted = position is not None and any(position[: len(one)] == one for one in self._wanted)
        slot = len(self.types) if is_wanted else _MISSING
        match given.kind:
            case "int" | "long":
                self._emit(_VARINT, slot, _INT_BITS if given.kind == "int" else _LONG_BITS)
            case "fixed" if given.scale is not None and given.size > DECIMAL_BYTES_MAX:
                message = f"the schema has a decimal of more than {DECIMAL_BYTES_MAX} bytes"
                raise ValueError(message)
            case "float" | "double" | "fixed":
                self._emit(_SKIP, slot, {"float": 4, "double": 8}.get(given.kind, given.size))
            case "boolean":
                self._emit(_BOOLEAN, slot)
            case "enum":
                self._emit(_INDEX, slot, len(given.symbols))
            case "string":
                self._emit(_TEXT, slot)
            case _:
                self._emit(_COUNTED, slot, 0 if given.scale is None else DECIMAL_BYTES_MAX)
        if not is_wanted:
            return OPAQUE
        self.types.append(given)
        if len(self.types) > SCALARS_MAX:
            message = f"the schema has more than {SCALARS_MAX} scalars that are wanted"
            raise ValueError(message)
        return Scalar(slot, _KINDS.get(given.kind, OTHER))

    def _add_union(self, given: AvroType, position: Position | None, level: int) -> Any:
        matters = position is not None and any(
            position[: len(one)] == one or one[: len(position)] == position for one in self._wanted
        )
        number, first = self.unions if matters else _MISSING, len(self.targets)
        self.unions += matters
        self._emit(_BRANCH, number, len(given.branches), first)
        self.targets += [0] * len(given.branches)
        plans, jumps = [], []
        for place, branch in enumerate(given.branches):
            self.targets[first + place] = len(self.code)
            plans.append(self.add(branch, position, level))
            jumps.append(self._emit(_JUMP))
        for jump in jumps:
            jump[1] = len(self.code)
        return _Choice(number, plans) if matters else OPAQUE

    def _add_blocks(self, kind: str, items: AvroType, level: int) -> Any:
        place = len(self.code)
        block = self._emit(_BLOCK, 0, level)
        if kind == "map":
            self._emit(_TEXT, _MISSING)
        self.add(items, None, level + 1)
        self._emit(_NEXT, place + 1, level, place)
        block[1], block[3] = len(self.code), 1 + _values_in(items)
        return OPAQUE

    def _emit(self, *instruction: int) -> _Instruction:
        if len(self.code) == INSTRUCTIONS_MAX:
            message = f"the schema needs more than {INSTRUCTIONS_MAX} instructions"
            raise ValueError(message)
        self.code.append([*instruction, *[0] * (4 - len(instruction))])
        return self.code[-1]


def _values_in(given: AvroType) -> int:
    """Return how many values are in the records of a value at most, without those in arrays and maps."""
    if given.kind == "union":
        return max(map(_values_in, given.branches))
    return sum(1 + _values_in(one) for _, one in given.fields)


def _part(position: Position | None, name: str) -> Position | None:
    return None if position is None else (*position, name)


def read_longs(texts: StringColumn) -> Ints:
    """Decode integers that a program has found."""
    found = np.empty(len(texts), dtype=np.int64)
    _read_longs(texts.data, np.ascontiguousarray(texts.start), found)
    return found


def read_words(texts: StringColumn, size: int) -> Ints:
    """Decode little-endian words of ``size`` bytes that a program has found, as bits."""
    found = np.empty(len(texts), dtype=np.int64)
    _read_words(texts.data, np.ascontiguousarray(texts.start), size, found)
    return found


# The helpers below take the address of the data, and positions after it.
_CONTINUES, _SEVEN_BITS = 0x80, 0x7F


@compiled()
def _varint_end(data: int, at: int, stop: int, bits: int) -> int:
    """Return the position after the integer at ``at``, or `_MISSING` if it is invalid."""
    if at < stop and byte_at(data + at) < _CONTINUES:
        return at + 1
    stop = min(stop, at + _VARINT_BYTES_MAX)
    begin, found = at, np.uint64(0)
    while at < stop:
        byte = byte_at(data + at)
        at += 1
        found |= np.uint64(byte & _SEVEN_BITS) << np.uint64(7 * (at - begin - 1))
        if byte < _CONTINUES:
            if at - begin == _VARINT_BYTES_MAX and byte > 1:
                return _MISSING
            return at if bits == _LONG_BITS or found >> np.uint64(_INT_BITS) == 0 else _MISSING
    return _MISSING


@compiled()
def _long_at(data: int, at: int) -> Any:
    """Return the valid integer at ``at``."""
    first = np.int64(byte_at(data + at))
    if first < _CONTINUES:
        return (first >> 1) ^ -(first & 1)
    found, shift = np.uint64(0), 0
    while True:
        byte = byte_at(data + at)
        found |= np.uint64(byte & _SEVEN_BITS) << np.uint64(shift)
        if byte < _CONTINUES:
            break
        at, shift = at + 1, shift + 7
    half = np.int64(found >> np.uint64(1))
    return ~half if found & np.uint64(1) else half


@compiled(types.void, BYTES, INTS, INTS_OUT)
def _read_longs(data: Bytes, start: Ints, found: Ints) -> None:
    address = data.ctypes.data
    for row in range(len(start)):
        found[row] = _long_at(address, start[row])


@compiled(types.void, BYTES, INTS, types.int64, INTS_OUT)
def _read_words(data: Bytes, start: Ints, size: int, found: Ints) -> None:
    for row in range(len(start)):
        word = np.uint64(0)
        for byte in range(size):
            word |= np.uint64(data[start[row] + byte]) << np.uint64(8 * byte)
        found[row] = np.int64(word)


@compiled()
def _scalar_end(  # noqa: PLR0911 - one for each instruction
    data: int,
    at: int,
    stop: int,
    kind: int,
    operand: int,
    is_wanted: bool,  # noqa: FBT001 - compiled
) -> int:
    """Return the position after the fixed bytes, the Boolean or the integer at ``at``, or `_MISSING`."""
    if kind == _SKIP:
        return at + operand if operand <= stop - at else _MISSING
    if kind == _BOOLEAN:
        return at + 1 if at < stop and byte_at(data + at) <= 1 else _MISSING
    if kind == _INDEX:
        end = _varint_end(data, at, stop, _INT_BITS)
        return end if end >= 0 and 0 <= _long_at(data, at) < operand else _MISSING
    if kind == _VARINT:
        return _varint_end(data, at, stop, operand)
    begin = _varint_end(data, at, stop, _LONG_BITS)
    size: Any = np.int64(-1) if begin < 0 else _long_at(data, at)
    if size < 0 or size > stop - begin or (kind == _COUNTED and 0 < operand < size):
        return _MISSING
    end = int(begin + size)
    if kind == _TEXT and not is_plain(data, begin, end) and (is_wanted or not is_utf8(data, begin, end)):
        return _MISSING
    return end


@compiled(types.void, BYTES, INTS, INTS, COLUMNS_OUT, INTS, COLUMNS_OUT, COLUMNS_OUT, BYTES_OUT)
def _run(  # noqa: C901, PLR0912 - an interpreter has a branch for each instruction
    data: Bytes, start: Ints, end: Ints, code: Ints, targets: Ints, spans: Ints, branches: Ints, is_read: Bytes
) -> None:
    """Execute the program for each datum. Store whether it was understood in ``is_read``; see `Found` for the rest."""
    address, left = data.ctypes.data, np.zeros(_LEVELS_MAX, dtype=np.int64)
    for row in range(len(start)):
        at, stop, place = start[row], end[row], 0
        # As in `reading`, except that the values outside of arrays and maps are few enough in any case.
        values = VALUES_PER_BYTE * (stop - at)
        while place < len(code) and at >= 0:
            kind, slot, operand, begin = code[place, 0], code[place, 1], code[place, 2], at
            place += 1
            if kind <= _INDEX:
                at = _scalar_end(address, at, stop, kind, operand, slot >= 0)
                if slot >= 0 and at >= 0:
                    if kind in (_TEXT, _COUNTED):
                        begin = _varint_end(address, begin, stop, _LONG_BITS)
                    spans[2 * slot, row], spans[2 * slot + 1, row] = begin, at
            elif kind == _BRANCH:
                at = _scalar_end(address, at, stop, _INDEX, operand, False)  # noqa: FBT003 - compiled
                if at >= 0:
                    index = _long_at(address, begin)
                    place = targets[code[place - 1, 3] + index]
                    if slot >= 0:
                        branches[slot, row] = index
            elif kind == _JUMP:
                place = slot
            elif kind == _BLOCK:
                at = _varint_end(address, at, stop, _LONG_BITS)
                count: Any = np.int64(0) if at < 0 else _long_at(address, begin)
                if count < 0:
                    count = -count
                    at = _varint_end(address, at, stop, _LONG_BITS)
                each = code[place - 1, 3]
                if count < 0 or count > values // each:
                    at = _MISSING
                values -= count * each
                left[operand] = count
                if count == 0:
                    place = slot
            else:
                left[operand] -= 1
                place = slot if left[operand] > 0 else code[place - 1, 3]
        is_read[row] = at == stop and place == len(code)
