"""Do tables become events that the connector accepts, with every number as it was, and is what is left out reported?"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from broker.settings import EventSettings
from broker.times import parse_time
from connector.formats.events import Parser
from simulator.convert import command
from simulator.convert.command import LEFT_OUT, convert
from simulator.convert.events import EVENT_BYTES_MAX, Columns, Conversion
from simulator.convert.tables import Row, TableError

Table = Callable[[str, str | bytes], Path]

PARSER = Parser("ms", EVENT_BYTES_MAX)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Write a table, and return its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def run(table: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Convert a table. Return the exit status and the events."""
    out = table.with_name("events.json")
    status = command.main([str(table), "--out", str(out), *arguments])
    return status, [json.loads(line) for line in out.read_bytes().splitlines()]


def test_each_row_of_a_csv_file_is_an_event(table: Table) -> None:
    press = table("press.csv", "ts,machine,force,stroke\n1000,P7,1.50,2\n2000,P8,,-3e2\n")
    status, events = run(press, "--time", "ts", "--thing", "machine", "--quantities", "force,stroke")
    assert (status, events) == (
        0,
        [
            {"Thing": "P7", "Timestamp": 1000, "force": 1.5, "stroke": 2, "id": "press-1"},
            {"Thing": "P8", "Timestamp": 2000, "stroke": -300.0, "id": "press-2"},
        ],
    )
    assert b'"force": 1.50,' in press.with_name("events.json").read_bytes(), "a number keeps its digits"


def test_a_row_may_have_one_value_and_the_name_of_its_quantity(table: Table) -> None:
    tags = table(
        "tags.jsonl", '{"t": 1.25, "d": 7, "tag": "rpm", "v": 3}\n\n{"t": 2, "d": 7, "tag": "on", "v": null}\n'
    )
    arguments = ["--time", "t", "--time-unit", "s", "--thing", "d", "--quantity", "tag", "--value", "v"]
    event = {"Thing": "7", "Timestamp": "1970-01-01T00:00:01.25Z", "rpm": 3, "id": "tags-1"}
    assert run(tags, *arguments) == (0, [event]), "times in another unit than ms are written as text"


def test_a_parquet_file_has_the_events_that_the_same_csv_file_has(tmp_path: Path, table: Table) -> None:
    at = dt.datetime(2019, 4, 1, 7, 27, 40, 415_000)  # noqa: DTZ001 - times without an offset are the case
    columns = {
        "at": pa.array([at, at], pa.timestamp("ns")),
        "force": pa.array([1.5, None]),
        "stroke": pa.array([decimal.Decimal("2.50"), decimal.Decimal("3.00")]),
        "unused": pa.array([[1], [2]]),
    }
    path = tmp_path / "log.parquet"
    parquet.write_table(pa.table(columns), path)
    csv = table("log.csv", "at;force;stroke\n2019-04-01 07:27:40.415;1.5;2.50\n2019-04-01 07:27:40.415;;3.00\n")
    arguments = ["--time", "at", "--utc-offset", "+02:00", "--thing-name", "P7", "--quantities", "force,stroke"]
    expected = run(csv, *arguments, "--separator", ";")
    found = run(path, *arguments)
    assert found[0] == expected[0] == 0
    for events in (found[1], expected[1]):
        for event in events:
            event["Timestamp"] = parse_time(event["Timestamp"], "ms")
    assert found == expected


@pytest.mark.parametrize(("zone", "end"), [(None, "+01:00"), ("UTC", "Z"), ("Europe/Berlin", "Z")])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_timestamp_of_a_parquet_file_is_exact(zone: str | None, end: str, unit: str, tmp_path: Path) -> None:
    count = 1_554_096_380_468_123_456 // {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
    at = pa.array([count], pa.int64()).cast(pa.timestamp(unit, zone))
    path = tmp_path / "log.parquet"
    parquet.write_table(pa.table({"at": at, "force": [1]}), path)
    stored = parquet.read_table(path)["at"][0]
    status, (event,) = run(
        path, "--time", "at", "--utc-offset", "+01:00", "--thing-name", "P7", "--quantities", "force"
    )
    assert (status, event["Timestamp"].endswith(end)) == (0, True)
    hour_ns = 0 if zone else 3600 * 10**9
    assert parse_time(event["Timestamp"], "ms") == int(stored.cast(pa.timestamp("ns", zone)).value) - hour_ns


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("2019-04-01T07:27:40,P7,1", "row 2: time '2019-04-01T07:27:40' has no offset from UTC; add Z"),
        ("noon,P7,1", "row 2: time 'noon' is not an ISO-8601 time"),
        (",P7,1", "row 2: 'ts' is missing"),
        ("1,,1", "row 2: 'machine' is missing"),
        (f"1,{'x' * 257},1", "row 2: 'machine' must be text of 1 to 256 characters"),
        ("1,P7", "row 2: it has 2 cells, and the header has 3"),
        ("1,P7,on", "row 2, 'force': \"on\" is not a finite number"),
        ("1,P7,NaN", "row 2, 'force': \"NaN\" is not a finite number"),
        ("1,P7,1e999", "row 2, 'force': 1e999 is not a finite number"),
        ('1,P7,"1,5"', "row 2, 'force': \"1,5\" is not a finite number"),
    ],
)
def test_what_is_not_usable_is_left_out_and_reported(
    row: str, why: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    press = table("press.csv", f"ts,machine,force\n1,P7,1\n{row}\n3,P7,3\n")
    status, events = run(press, "--time", "ts", "--thing", "machine", "--quantities", "force")
    assert (status, [event["id"] for event in events]) == (LEFT_OUT, ["press-1", "press-3"])
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cell", "number"),
    [("+1.50", b"1.50"), ("007", b"7"), (" .5", b"0.5"), ("-5.", b"-5"), ("00", b"0"), ("+1E5", b"1E5"), ("-0", b"-0")],
)
def test_a_number_that_json_writes_differently_keeps_its_digits(cell: str, number: bytes, table: Table) -> None:
    press = table("press.csv", f"ts,force,,\n1,{cell},,\n")
    assert run(press, "--time", "ts", "--thing-name", "P7", "--quantities", "force")[0] == 0
    assert b'"force": %b,' % number in press.with_name("events.json").read_bytes()


@pytest.mark.parametrize("cell", [".", "+", "e5", "1_0", "1,5", "0x1", "\u0661"])
def test_what_only_resembles_a_number_is_left_out(cell: str, table: Table) -> None:
    press = table("press.csv", f'ts,force\n1,"{cell}"\n2,2\n')
    status, events = run(press, "--time", "ts", "--thing-name", "P7", "--quantities", "force")
    assert (status, [event["Timestamp"] for event in events]) == (LEFT_OUT, [2])


def test_rows_without_a_value_are_not_an_error(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    press = table("press.csv", "ts,force\n1,\n2,2\n")
    status, events = run(press, "--time", "ts", "--thing-name", "P7", "--quantities", "force")
    assert (status, [event["Timestamp"] for event in events]) == (0, [2])
    assert "rows: 2; events: 1; rows without a usable value: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--quantities", "force"], "give either --thing or --thing-name"),
        (["--thing", "m", "--thing-name", "P7", "--quantities", "force"], "give either --thing or --thing-name"),
        (["--thing", "m"], "give either --quantities, or --quantity and --value"),
        (["--thing", "m", "--quantity", "q"], "give either --quantities, or --quantity and --value"),
        (["--thing", "m", "--value", "q"], "give either --quantities, or --quantity and --value"),
        (["--thing", "m", "--quantities", "a", "--quantity", "q", "--value", "v"], "give either --quantities, or"),
        (["--thing", "m", "--quantities", "force,,speed"], "names of quantities have 1 to 256 characters"),
        (["--thing", "m", "--quantities", "force,force"], "a column is named twice in --quantities"),
        (["--thing", "m", "--quantities", "force", "--quantities", "force"], "a column is named twice"),
        (["--thing", "m", "--quantities", ",".join(map(str, range(10_001)))], "at most 10,000 quantities"),
        (["--thing", "m", "--quantities", "force", "--utc-offset", "+99:00"], "--utc-offset must be Z or an offset"),
        (["--thing", "m", "--quantities", "force", "--out", "press.csv"], "--out must not be the table itself"),
        (["--thing", "m", "--quantities", "id"], "a quantity cannot be called Thing or Timestamp or id"),
        (["--thing", "m", "--quantities", "force", "--utc-offset", "1"], "--utc-offset must be Z or an offset"),
        (["--thing", "m", "--quantities", "force", "--separator", "ab"], "--separator must be one character"),
        (["--thing", "m", "--quantities", "force", "--separator", '"'], "--separator must be one character"),
        (["--thing", "m", "--quantities", "force", "--out", "x" * 300], "File name too long"),
        (["--thing-name", "\udcff", "--quantities", "force"], "--thing-name must be text of 1 to 256 characters"),
        (["--thing", "m", "--quantities", "x" * 257], "names of quantities have 1 to 256 characters"),
        (["--thing-name", "", "--quantities", "force"], "--thing-name must be text of 1 to 256 characters"),
    ],
)
def test_wrong_settings_are_named_and_leave_the_file_unchanged(
    arguments: Sequence[str],
    why: str,
    table: Table,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    press = table("press.csv", "ts,m,force\n1,P7,1\n")
    monkeypatch.chdir(press.parent)
    with pytest.raises(SystemExit) as ended:
        run(press, "--time", "ts", *arguments)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
    assert [path.name for path in press.parent.iterdir()] == ["press.csv"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("t.csv", "", "is empty: its first row must contain the names of the columns"),
        ("t.csv", "ts,ts,force\n", "has 2 columns 'ts'; its columns are 'ts', 'ts', 'force'"),
        ("t.json", '{"ts": 1, "forse": 2}\n', "no row has a value 'force'"),
        ("t.csv", "ts,speed\n", "has no column 'force'; its columns are 'ts', 'speed'"),
        ("t.csv", "ts,force\n" + ("1," + "x" * 1_000) * 1_100, "line 2: it is longer than 1,048,576 characters"),
        ("t.json", '{"ts": 1, "force": ' + "1" * 1_100_000 + "}", "line 1: it is longer than 1,048,576 characters"),
        ("t.csv", b"ts,force\n1,\xff\n", "can't decode byte 0xff"),
        ("t.csv", 'ts,force\n1,"2\n', "unexpected end of data"),
        ("t.csv", "ts,force\n1," + "x" * 200_000, "field larger than field limit"),
        ("t.parquet", b"PAR1 not really", "is not a Parquet file"),
    ],
)
def test_a_table_that_cannot_be_read_leaves_the_file_unchanged(
    name: str, content: str | bytes, why: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    table("events.json", "{}\n")
    status, events = run(table(name, content), "--time", "ts", "--thing-name", "P7", "--quantities", "force")
    assert (status, events) == (2, [{}])
    assert why in capsys.readouterr().err


cells = st.one_of(
    st.integers(),
    st.floats(),
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.none(),
    st.booleans(),
    st.lists(st.integers(), max_size=2),
)


class Interrupted(Conversion):
    """A conversion that is interrupted at its second row."""

    def event(self, row: Row) -> bytes | None:
        if self.rows:
            raise KeyboardInterrupt
        return super().event(row)


@pytest.mark.parametrize(
    ("rows", "conversion", "why"),
    [
        ('1,1\n2,"3', Conversion, "unexpected end of data"),
        ("1,1\n2,2\n", Interrupted, "stopped; "),
        ("x,1\n", Conversion, "the table has no row that could become an event (1 rows)"),
        ("1,\n", Conversion, "the table has no row that could become an event (1 rows)"),
    ],
)
def test_a_conversion_that_does_not_succeed_leaves_everything_as_it_was(
    rows: str,
    conversion: type[Conversion],
    why: str,
    table: Table,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "Conversion", conversion)
    out, press = table("events.json", "{}\n"), table("press.csv", f"ts,force\n{rows}")
    status, events = run(press, "--time", "ts", "--thing-name", "P7", "--quantities", "force")
    assert (status, events) == (2 if "unexpected" in why else 1, [{}])
    assert why in capsys.readouterr().err
    assert sorted(path.name for path in out.parent.iterdir()) == ["events.json", "press.csv"]


def test_a_folder_that_cannot_be_written_to_is_an_error(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    press = table("press.csv", "ts,force\n1,1\n")
    arguments = ["--time", "ts", "--thing-name", "P7", "--quantities", "force", "--out"]
    assert command.main([str(press), *arguments, str(press.with_name("absent") / "events.json")]) == 1
    assert command.main([str(press), *arguments, str(press.parent)]) == 1
    assert "events.json was not written: " in capsys.readouterr().err


def test_the_target_of_a_link_is_replaced_and_keeps_its_permissions(table: Table) -> None:
    real, press = table("real.json", ""), table("press.csv", "ts,force\n1,1\n")
    real.chmod(0o600)
    press.with_name("events.json").symlink_to(real)
    assert run(press, "--time", "ts", "--thing-name", "P7", "--quantities", "force")[0] == 0
    assert press.with_name("events.json").is_symlink()
    assert (real.stat().st_mode & 0o777, len(real.read_bytes().splitlines())) == (0o600, 1)


def test_marks_quotes_and_blank_lines_of_a_csv_file_are_not_part_of_its_cells(table: Table) -> None:
    press = table("press.csv", '\ufeffts\tthe "thing"\t"force,\r\nkN"\r\n\r\n1\t"P\n7"\t1\r\n\t\t\r\n')
    arguments = ["--time", "ts", "--thing", 'the "thing"', "--quantity", 'the "thing"', "--value", "force,\r\nkN"]
    status, events = run(press, *arguments, "--separator", "\\t")
    assert (status, events) == (0, [{"Thing": "P\n7", "Timestamp": 1, "P\n7": 1, "id": "press-1"}])


@pytest.mark.parametrize(
    ("cells", "quantities", "why"),
    [
        ({"m": "x"}, [f"force [{n}]" for n in range(257)], "its event would have 258 brackets"),
        ({"m": "x"}, [f"{'n' * 200}{n}" for n in range(1_300)], "its event would have 2"),
        ({"m": "\u20ac" * 250}, [f"{n}" for n in range(1_000)], "its thing and its id are too long"),
    ],
    ids=["brackets", "bytes", "copies"],
)
def test_a_row_whose_event_the_connector_would_refuse_is_left_out(
    cells: dict[str, str], quantities: list[str], why: str
) -> None:
    encoded = {name: msgspec.json.encode(value) for name, value in cells.items()}
    row = Row(1, {"t": b"1", **encoded, **dict.fromkeys(quantities, b"1")})
    conversion = Conversion(Columns(time="t", table="x" * 100, thing="m", quantities=tuple(quantities)))
    assert conversion.event(row) is None
    assert why in conversion.first_row


def test_the_size_of_an_event_is_limited_as_in_the_connector() -> None:
    assert EventSettings().event_bytes_max == EVENT_BYTES_MAX


def test_values_of_a_parquet_file_keep_their_digits(tmp_path: Path) -> None:
    columns = {
        "thing": pa.array([b"P7"]),
        "id": pa.array(["a"]).dictionary_encode(),
        "single": pa.array([0.1], pa.float32()),
        "whole": pa.array([2**64 - 1], pa.uint64()),
        "half": pa.array([0.5], pa.float16()),
        "list": pa.array([[1, 2]]),
        "none": pa.array([None]),
    }
    path = tmp_path / "log.parquet"
    parquet.write_table(pa.table(columns), path)
    status, (event,) = run(
        *(path, "--time", "half", "--thing", "thing", "--id", "id"),
        *("--quantities", "single,whole,half", "--quantities", "list,none"),
    )
    assert status == LEFT_OUT, "a list is not a number"
    assert event == {"Thing": "P7", "Timestamp": 0.5, "single": 0.1, "whole": 2**64 - 1, "half": 0.5, "id": "a"}


@given(st.lists(st.dictionaries(st.sampled_from(["t", "m", "q", "a", "b"]), cells), max_size=6))
def test_the_connector_accepts_every_event_whatever_the_table_contains(rows: list[dict[str, Any]]) -> None:
    for columns in (
        Columns(time="t", table="x", thing="m", quantities=("a", "b")),
        Columns(time="t", table="x", thing="m", id="b", quantity="q", value="a"),
    ):
        conversion = Conversion(columns)
        for number, fields in enumerate(rows, 1):
            encoded = {name: msgspec.json.encode(value) for name, value in fields.items()}
            row = Row(number, {name: cell for name, cell in encoded.items() if cell != b"null"})
            event = conversion.event(row)
            assert event is None or PARSER.parse(event).refusals == []
        assert conversion.rows == len(rows)


def test_a_row_that_is_not_json_is_left_out(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = '{"t": 1, "a": 1}\n', '[1]\n{"t": 1, "t": 2, "a": 1}\n{"t": 1, "a": "\udcff"}\n'
    lines = table("t.jsonl", (f"\ufeff{good}{bad}{good}").encode(errors="surrogateescape"))
    status, events = run(lines, "--time", "t", "--thing-name", "P7", "--quantities", "a")
    assert (status, [event["id"] for event in events]) == (LEFT_OUT, ["t-1", "t-5"])
    said = capsys.readouterr().err
    assert "rows that cannot be used were left out: 2; the first: row 2: it is not a JSON object" in said
    assert "values that cannot be used were left out: 1; the first: row 4, 'a': " in said


def test_the_times_are_shown_as_dates_so_that_a_wrong_unit_is_noticed(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    press = table("press.csv", "ts,force\n1700000000,1\n1700000009,2\nnever,3\n1699999999,x\n")
    given = ["--time", "ts", "--thing-name", "P7", "--quantities", "force"]
    run(press, *given, "--time-unit", "s")
    assert "; event times from 2023-11-14T22:13:20Z to 2023-11-14T22:13:29Z; " in capsys.readouterr().out
    run(press, *given)
    assert "; event times from 1970-01-20T16:13:20Z to 1970-01-20T16:13:20.009Z; " in capsys.readouterr().out


def test_what_is_in_a_table_cannot_control_the_terminal(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    press = table("press.csv", "ts,force\n1,1\n2,\x1b[31m\u009b31m\u202e\n")
    assert run(press, "--time", "ts", "--thing-name", "P7", "--quantities", "force")[0] == LEFT_OUT
    said = capsys.readouterr().err
    assert "row 2, 'force'" in said.replace("\\'", "'")
    assert said.rstrip("\n").isprintable()


def test_thousands_of_columns_are_not_all_listed(table: Table) -> None:
    press = table("press.csv", ",".join(f"c{number}" for number in range(5_000)) + "\n")
    with pytest.raises(TableError, match=r"'c18', 'c19' and 4980 more$"):
        convert(press, ",", Columns(time="ts", table="x", quantities=("c1",)), press.with_name("out"))


def test_the_same_table_has_the_same_ids_each_time(table: Table) -> None:
    press = table("press.csv", "ts,force\n1,1\n2,2\n")
    columns = Columns(time="ts", table="press", thing_name="P7", quantities=("force",))
    out = press.with_name("events.json")
    convert(press, ",", columns, out)
    before = out.read_bytes()
    convert(press, ",", columns, out)
    assert out.read_bytes() == before


def test_a_column_that_a_csv_file_does_not_have_is_an_error(table: Table) -> None:
    press = table("press.csv", "ts,force\n1,1\n")
    with pytest.raises(TableError, match="has no column 'speed'"):
        convert(press, ",", Columns(time="ts", table="x", quantities=("speed",)), press.with_name("out"))
