"""The settings of the sinks, and what their lines contain, without a server."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest

from broker.settings import SettingsError, load_settings
from broker.wire.records import AlignedRow
from db_connector.__main__ import make_sink, run
from db_connector.settings import SINKS, ConnectorSettings, DbConnectorSettings, PostgresqlSettings
from db_connector.sinks.postgresql import COLUMNS, PostgresqlSink
from db_connector.sinks.sink import OutputClosedError, OutputFailedError, UnavailableError, UnrepresentableError
from db_connector.sinks.stdout import StdoutSink
from tests.unit.db_connector.sink_contract import place
from tests.unit.db_connector.test_contract import joined


def postgresql_sink(**settings: object) -> PostgresqlSink:
    return PostgresqlSink(PostgresqlSettings.model_validate(settings), ConnectorSettings(), "ms")


@pytest.mark.parametrize(
    "host", ["", "a b", "lsb@db", "db/lsb", "postgresql://db", "db,db-2", "db?password=x", "db'", "db#"]
)
def test_a_host_is_a_name_and_cannot_smuggle_in_anything_else(tmp_path: Path, host: str) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(f'[postgresql]\nhost = "{host}"\n')
    with pytest.raises(SettingsError, match=r"postgresql\.host"):
        load_settings(DbConnectorSettings, file)


@pytest.mark.parametrize(
    "table", ["", "joined", "public.a b", "public.Joined", "a.b.c", "a.1a", "a.b;c", f"a.{'a' * 64}", "a."]
)
def test_a_table_is_a_plain_name(tmp_path: Path, table: str) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(f"[postgresql]\ntable = '{table}'\n")
    with pytest.raises(SettingsError, match=r"postgresql\.table"):
        load_settings(DbConnectorSettings, file)


@pytest.mark.parametrize("sink", SINKS)
def test_the_flag_takes_precedence_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str) -> None:
    opened: list[str] = []

    def serve(settings: DbConnectorSettings, *_more: object) -> int:
        opened.append(make_sink(settings).name)
        return 0

    monkeypatch.setattr("db_connector.__main__._serve", serve)
    monkeypatch.setenv("LSB_DB_CONNECTOR__SINK", "")  # restored afterwards
    file = tmp_path / "lsb.toml"
    file.write_text('[db_connector]\nsink = "influxdb"\n')
    assert run(["--config", str(file), "--sink", sink]) == 0
    names = {
        "influxdb": "InfluxDB",
        "postgresql": "PostgreSQL",
        "delta": "Delta Lake",
        "stdout": "standard output",
    }
    assert opened == [names[sink]]


def test_a_password_comes_from_its_file_first(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from the file\n")
    settings = PostgresqlSettings.model_validate({"password": "given", "password_file": secret})
    assert settings.secret() == "from the file"
    assert PostgresqlSettings.model_validate({"password": "given"}).secret() == "given"
    assert PostgresqlSettings().secret() is None
    assert "given" not in repr(settings)


def test_a_row_has_a_member_for_each_column() -> None:
    sink = postgresql_sink()
    pair = json.loads(
        sink.encode(joined("é", "p", 2 * 1_554_096_460_422_500_123 + 1, {"left": 1.0, "right": 2.0}), place(0))
    )
    assert list(pair) == list(COLUMNS)
    assert (pair["time"], pair["time_ns"], pair["half"]) == (
        "2019-04-01T05:27:40.422500+00:00",
        1_554_096_460_422_500_123,
        True,
    )
    assert (pair["result"], pair["left_value"], pair["right_value"], pair["row_values"]) == (None, 1.0, 2.0, None)
    row = json.loads(sink.encode(AlignedRow("R", "a", -1, 5.0, "a:0:1", {"x": None, "y": 1.0}), place(0)))
    assert (row["time"], row["result"], row["row_values"]) == (
        "1969-12-31T23:59:59.999000+00:00",
        5.0,
        {"x": None, "y": 1.0},
    )


def test_a_server_that_is_not_there_is_unavailable_and_named() -> None:
    sink = postgresql_sink(port=1, password="hidden")  # noqa: S106 - no server has it
    place = r"PostgreSQL at 127.0.0.1:1, database lsb, table public.joined: .* is PostgreSQL running there"
    with pytest.raises(UnavailableError, match=place) as raised:
        sink.probe()
    assert "hidden" not in str(raised.value)


def test_a_target_names_the_database_and_the_table_but_no_address() -> None:
    sink = postgresql_sink(host="db-1", port=5433, database="plant", table="a.b")
    assert sink.target == "table a.b in plant, rows of form 1"


def test_a_line_of_standard_output_is_the_result_without_its_records() -> None:
    sink = StdoutSink("ms")
    pair = joined("R", "p", 5, {"left": 1.0, "right": 2.0}, "j:0:1:2", tie="1-0")
    assert json.loads(sink.encode(pair, place(0))) == {
        "thing": "R", "quantity": "p", "phenomenonTime": 0.0000025, "result": {"left": 1.0, "right": 2.0},
        "id": "j:0:1:2", "tie": "1-0",
    }  # fmt: skip
    assert b'"phenomenonTime":0.0000025,' in sink.encode(pair, place(0)), "the exact text"
    assert "tie" not in json.loads(sink.encode(joined(), place(0)))
    for wrong in (joined(result=float("nan")), joined(twice_ns=2**70)):
        with pytest.raises(UnrepresentableError):
            sink.encode(wrong, place(0))


@dataclass
class Pipe:
    """A pipe as standard output. Each end is closed once, because its number may be another file's afterwards."""

    sink: StdoutSink
    reader: BinaryIO
    writer: BinaryIO


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", 0) as reading, os.fdopen(writer, "wb", 0) as writing:
        monkeypatch.setattr(sys, "stdout", writing)
        yield Pipe(StdoutSink("ms"), reading, writing)


@pytest.mark.parametrize("is_blocking", [True, False])
def test_every_line_arrives_however_full_the_pipe_is(pipe: Pipe, *, is_blocking: bool) -> None:
    # The program that starts the connector may have left the pipe in either mode.
    os.set_blocking(pipe.writer.fileno(), is_blocking)
    lines = [b"%d" % number * 200 for number in range(5_000)]
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(pipe.reader.read()))
    reading.start()
    try:
        pipe.sink.write(lines)
    finally:
        pipe.writer.close()  # so that the reader ends
        reading.join()
    assert found == [b"".join(line + b"\n" for line in lines)]


def test_a_closed_pipe_is_told(pipe: Pipe) -> None:
    pipe.sink.probe()
    pipe.reader.close()
    with pytest.raises(OutputClosedError, match="the reader of standard output has ended"):
        pipe.sink.write([b"{}"])


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb", 0) as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OutputFailedError, match="standard output: No space left on device"):
            StdoutSink("ms").write([b"{}"])


def test_a_closed_standard_output_is_an_error_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SettingsError, match="standard output is closed"):
        StdoutSink("ms")
