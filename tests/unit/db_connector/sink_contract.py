"""The contract of all sinks that store results: what is acknowledged is stored exactly, and a replay changes nothing.

It runs in tests/unit on the stand-in for InfluxDB, and in tests/integration on the real servers.
"""

# ruff: noqa: D101 - the names of tests, and of the parts of a stand-in, are descriptive enough

from __future__ import annotations

from typing import NamedTuple, Protocol

import pytest

from broker.wire.records import ROW_BITS, AlignedRow, Joined
from db_connector.sinks.sink import Place, Sink, UnrepresentableError, WriteError
from tests.unit.db_connector.test_contract import NASTY_NAMES, Point, joined

DOUBLES = [0.0, -1.5, 1e16, 1e300, 5e-324, 1.7976931348623157e308, 5.0, 0.1]


def place(offset: int, partition: int = 0) -> Place:
    """Return the place of a result that has a message to itself."""
    return Place(partition, offset << ROW_BITS)


class Identity(NamedTuple):
    """What identifies a result, whatever the sink."""

    join: str
    thing: str
    quantity: str
    time_ns: int
    half: bool
    tie: str


Stored = dict[Identity, dict[str, float]]


class SinkStand(Protocol):
    """A sink under test, and a way to read back what it has stored."""

    sink: Sink
    missing: Sink
    """A sink whose database does not exist."""

    def stored(self) -> Stored: ...


def expected(pair: Joined, twice_ns: int) -> tuple[Identity, dict[str, float]]:
    """Return what is stored for a pair whose mean time is half of ``twice_ns``."""
    values = dict(pair.result) if isinstance(pair.result, dict) else {"result": pair.result}
    join = pair.id.partition(":")[0]
    return Identity(join, pair.thing, pair.quantity, twice_ns // 2, twice_ns % 2 == 1, pair.tie), values


def identity_of(point: Point) -> Identity:
    """Return the identity of the result of a point in InfluxDB."""
    tags = dict(point.tags)
    half = tags.get("half") == "1"
    return Identity(tags["join"], tags["thing"], tags["quantity"], point.time_ns, half, tags.get("tie", ""))


class SinkContract:
    def test_an_acknowledged_result_is_stored_exactly(self, sink_stand: SinkStand) -> None:
        twice_ns = 2 * 1_554_096_460_422_500_123 + 1
        pair = joined(result=0.1 + 0.2, twice_ns=twice_ns, tie="3-0")
        sink_stand.sink.write([sink_stand.sink.encode(pair, place(0))])
        assert sink_stand.stored() == dict([expected(pair, twice_ns)])

    @pytest.mark.parametrize("twice_ns", [-3, -1, 1, 2 * -9_000_000_000_000_000_001, 2 * 9_000_000_000_000_000_001])
    def test_a_time_is_rounded_down_also_before_1970(self, sink_stand: SinkStand, twice_ns: int) -> None:
        pair = joined(twice_ns=twice_ns)
        sink_stand.sink.write([sink_stand.sink.encode(pair, place(0))])
        assert sink_stand.stored() == dict([expected(pair, twice_ns)])

    def test_a_replay_changes_nothing(self, sink_stand: SinkStand) -> None:
        pairs = [joined(twice_ns=2_000_000 * n, identity=f"power:0:{n}:{n}") for n in range(20)]
        lines = [sink_stand.sink.encode(pair, place(n)) for n, pair in enumerate(pairs)]
        sink_stand.sink.write(lines)
        before = sink_stand.stored()
        sink_stand.sink.write(lines[::-1])
        sink_stand.sink.write([*lines, *lines])
        assert len(before) == 20
        assert sink_stand.stored() == before

    def test_every_name_that_can_be_encoded_comes_back_as_it_was(self, sink_stand: SinkStand) -> None:
        lines: list[bytes] = []
        wanted: Stored = {}
        for at, thing in enumerate(NASTY_NAMES):
            quantity, identity = NASTY_NAMES[at - 3], f"{NASTY_NAMES[at - 5]}:0:{at}:2"
            pair = joined(thing, quantity, 2_000_000 * at, identity=identity)
            try:
                lines.append(sink_stand.sink.encode(pair, place(at)))
            except UnrepresentableError:
                continue
            wanted |= dict([expected(pair, 2_000_000 * at)])
        sink_stand.sink.write(lines)
        assert len(wanted) > len(NASTY_NAMES) - 4
        assert sink_stand.stored() == wanted

    @pytest.mark.parametrize("value", DOUBLES)
    def test_a_number_comes_back_as_the_same_double(self, sink_stand: SinkStand, value: float) -> None:
        sink_stand.sink.write([sink_stand.sink.encode(joined(result={"left": value, "right": -value}), place(0))])
        assert list(sink_stand.stored().values()) == [{"left": value, "right": -value}]

    def test_a_row_is_stored_with_each_of_its_values(self, sink_stand: SinkStand) -> None:
        row = AlignedRow("R 1", "spindle", 7, 9.0, "spindle:0:301", {"speed": None, "a.b-c": 2.5, "é, x=1": -1.0}, "1")
        sink_stand.sink.write([sink_stand.sink.encode(row, place(0))])
        identity = Identity("spindle", "R 1", "spindle", 7_000_000, half=False, tie="1")
        assert sink_stand.stored() == {identity: {"result": 9.0, "a.b-c": 2.5, "é, x=1": -1.0}}

    @pytest.mark.parametrize("wrong", [float("nan"), float("inf"), {"left": 1.0}])
    def test_a_value_that_is_no_number_has_no_line(
        self, sink_stand: SinkStand, wrong: float | dict[str, float]
    ) -> None:
        with pytest.raises(UnrepresentableError):
            sink_stand.sink.encode(joined(result=wrong), place(0))

    def test_a_probe_stores_nothing(self, sink_stand: SinkStand) -> None:
        sink_stand.sink.probe()
        sink_stand.sink.write([])
        assert sink_stand.stored() == {}

    def test_a_database_that_does_not_exist_accepts_nothing(self, sink_stand: SinkStand) -> None:
        with pytest.raises(WriteError):
            sink_stand.missing.probe()
        with pytest.raises(WriteError):
            sink_stand.missing.write([sink_stand.missing.encode(joined(), place(0))])


class ReplacingSinkContract(SinkContract):
    """The contract of sinks that identify a result by itself, rather than by its place."""

    def test_a_later_value_replaces_an_earlier_one(self, sink_stand: SinkStand) -> None:
        first, second, third = (sink_stand.sink.encode(joined(result=value), place(0)) for value in (1.0, 2.0, 3.0))
        sink_stand.sink.write([first])
        sink_stand.sink.write([second, third])
        assert list(sink_stand.stored().values()) == [{"result": 3.0}]
