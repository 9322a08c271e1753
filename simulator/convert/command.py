"""The command that converts a table to an events file.

Each row becomes an event. Rows and values that cannot be used are left out; they are counted, and the first of each is
reported with the reason.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.commandline import imports_of, version_of

with imports_of("simulator.convert"):
    from broker.times import UNIT_NS, iso_text
    from broker.wire.records import NAME_LENGTH_MAX, QUANTITIES_MAX
    from simulator.convert.events import RESERVED, Columns, Conversion
    from simulator.convert.tables import TableError, open_table
    from simulator.files import LongLineError, replacing
    from simulator.recording import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = """\
examples:
  python -m simulator.convert press.csv --time ts --thing machine --quantities force,stroke
  python -m simulator.convert log.parquet --time at --utc-offset=+01:00 --thing-name press7 --quantities force
  python -m simulator.convert tags.jsonl --time t --time-unit s --thing device --quantity tag --value v

Exit status: 0 written, 1 not written, 2 not written because of invalid settings or an unreadable table, 3 written, but
rows or values that cannot be used were left out. The first of them is reported with the reason."""

LEFT_OUT: Final = 3
"""Exit status if the file was written, but rows or values were left out."""

_COLUMNS_SHOWN: Final = 20
_PROGRESS_S: Final = 5.0
_OFFSET = re.compile(r"Z|[+-](?:0\d|1[0-4]):[0-5]\d", re.ASCII)


class NoEventsError(Exception):
    """Raised if no row of a table became an event. `done` says why."""

    def __init__(self, done: Conversion) -> None:
        super().__init__("the table has no row that could become an event")
        self.done = done


def convert(path: Path, separator: str, columns: Columns, target: Path) -> Conversion:
    """Convert a table and write its events to `target` atomically. Raises TableError, NoEventsError and OSError."""
    table = open_table(path, separator)
    done, unseen = Conversion(columns), set[str]()
    if table.columns is None:
        unseen = set(columns.names())
    else:
        _check_columns(path, columns.names(), table.columns)
    due_s = time.monotonic() + _PROGRESS_S
    with replacing(target) as file:
        for row in table.rows(columns.names()):
            unseen -= row.cells.keys()
            if (event := done.event(row)) is not None:
                file.write(event + b"\n")
            if done.rows % 1_000 == 0 and time.monotonic() >= due_s:
                due_s = time.monotonic() + _PROGRESS_S
                print(f"convert: {done.rows:,} rows, {done.events:,} events", file=sys.stderr)
        if unseen and done.invalid_rows < done.rows:
            message = f"{path}: no row has a value {min(unseen)!r}"
            raise TableError(message)
        if not done.events:
            raise NoEventsError(done)
    return done


def _check_columns(path: Path, wanted: Sequence[str], columns: Sequence[str]) -> None:
    """Raise TableError if a wanted column is missing or repeated."""
    for name in wanted:
        if (count := columns.count(name)) != 1:
            fault = f"has {count} columns {name!r}" if count else f"has no column {name!r}"
            more = f" and {len(columns) - _COLUMNS_SHOWN} more" if len(columns) > _COLUMNS_SHOWN else ""
            message = f"{path} {fault}; its columns are {', '.join(map(repr, columns[:_COLUMNS_SHOWN]))}{more}"
            raise TableError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status. Invalid settings exit with status 2."""
    parser = converter_arguments()
    given = parser.parse_args(arguments)
    quantities = tuple(name for names in given.quantities for name in names.split(","))
    try:
        errors = _errors(given, quantities)
    except OSError as error:  # such as a name that is too long
        errors = [str(error)]
    if errors:
        parser.error("; ".join(errors))
    columns = Columns(
        time=given.time,
        table=given.table.stem[: NAME_LENGTH_MAX // 2],
        thing=given.thing,
        thing_name=given.thing_name or "",
        id=given.id,
        quantities=quantities,
        quantity=given.quantity,
        value=given.value,
        time_unit=given.time_unit,
        utc_offset=given.utc_offset or "",
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        done = convert(given.table, given.separator.replace("\\t", "\t"), columns, given.out)
    except (TableError, LongLineError) as error:
        print(f"convert: {error}", file=sys.stderr)
        return 2
    except NoEventsError as error:
        _report_left_out(error.done)
        print(f"convert: {given.out} was not written: {error} ({error.done.rows:,} rows)", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"convert: {given.out} was not written: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"convert: stopped; {given.out} is unchanged", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    _report_left_out(done)
    without = f"; rows without a usable value: {done.without_values:,}" if done.without_values else ""
    # As dates, so that a wrong unit is noticed.
    times = f"; event times from {' to '.join(map(iso_text, done.times_ns))}" if done.times_ns is not None else ""
    print(f"convert: rows: {done.rows:,}; events: {done.events:,}{without}{times}; written to {given.out}")
    return LEFT_OUT if done.invalid_rows or done.invalid_values else 0


def _report_left_out(done: Conversion) -> None:
    for count, what, first in (
        (done.invalid_rows, "rows", done.first_row),
        (done.invalid_values, "values", done.first_value),
    ):
        if count:
            left_out = f"{what} that cannot be used were left out: {count:,}; the first: {shown(first)}"
            print(f"convert: {left_out}", file=sys.stderr)


def converter_arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m simulator.convert",
        description="Convert a table to an events file: CSV, Parquet or, with any other ending, JSON lines.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=version_of("simulator.convert"))
    add("table", type=Path, help="the table")
    add("--time", required=True, metavar="COLUMN", help="column with the time: a number, or ISO-8601 text")
    add("--time-unit", choices=list(UNIT_NS), default="ms", help="unit of times that are numbers (default ms)")
    add("--utc-offset", metavar="+hh:mm", help="offset from UTC of times without one: Z, or for example =-05:00")
    add("--thing", metavar="COLUMN", help="column with the thing")
    add("--thing-name", metavar="NAME", help="the thing, if all rows belong to the same one")
    add("--id", metavar="COLUMN", help="column with the event's id; by default, the file's name and the row's number")
    add(
        "--quantities",
        action="append",
        default=[],
        metavar="COLUMN,...",
        help="columns with values, each of one quantity; may be repeated",
    )
    add("--quantity", metavar="COLUMN", help="column with the quantity's name, if each row has one value")
    add("--value", metavar="COLUMN", help="column with this value")
    add("--separator", default=",", help=r"what separates the cells of a CSV file (default ,); \t is a tab")
    add("--out", type=Path, default=Path("events.json"), help="the events file (default events.json)")
    return parser


def _errors(given: argparse.Namespace, quantities: Sequence[str]) -> list[str]:
    is_file = _is_name(str(given.table), 4_096) and given.table.is_file()
    wrong = {
        "give either --thing or --thing-name": (given.thing is None) == (given.thing_name is None),
        "give either --quantities, or --quantity and --value": not (bool(quantities) ^ (given.quantity is not None))
        or (given.quantity is None) != (given.value is None),
        f"--thing-name must be text of 1 to {NAME_LENGTH_MAX} characters": given.thing_name is not None
        and not _is_name(given.thing_name),
        f"names of quantities have 1 to {NAME_LENGTH_MAX} characters": not all(map(_is_name, quantities)),
        "a column is named twice in --quantities": len(set(quantities)) < len(quantities),
        f"there may be at most {QUANTITIES_MAX:,} quantities": len(quantities) > QUANTITIES_MAX,
        f"a quantity cannot be called {' or '.join(sorted(RESERVED))}": not RESERVED.isdisjoint(quantities),
        "--utc-offset must be Z or an offset such as +01:00": given.utc_offset is not None
        and not _OFFSET.fullmatch(given.utc_offset),
        "--separator must be one character, and not a quotation mark or the end of a line": (
            len(separator := given.separator.replace("\\t", "\t")) != 1 or separator in '"\r\n'
        ),
        f"{given.table!s:.200} is not a file": not is_file,
        "--out must not be the table itself": is_file and given.out.exists() and given.out.samefile(given.table),
    }
    return [error for error, is_wrong in wrong.items() if is_wrong]


def _is_name(text: str, length_max: int = NAME_LENGTH_MAX) -> bool:
    # A command-line argument that is not UTF-8 contains surrogates.
    return 1 <= len(text) <= length_max and not any("\ud800" <= one <= "\udfff" for one in text)
