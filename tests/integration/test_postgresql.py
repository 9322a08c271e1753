"""Results in PostgreSQL, tested on a real server: the contract of all sinks, mistakes, and failures."""

# ruff: noqa: D101 - the names of tests, and of the parts of a stand-in, are descriptive enough

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.wire.records import AlignedRow, Joined, encode
from db_connector.settings import ConnectorSettings, PostgresqlSettings
from db_connector.sinks.postgresql import PostgresqlSink
from db_connector.sinks.sink import MisconfiguredError, RefusedError, UnavailableError
from db_connector.writer import Writer
from tests.integration.db_connector_pipeline import Pipeline, db_connector_pipeline, pairs_of, values_of
from tests.integration.postgresql_server import PASSWORD, PostgresqlServer
from tests.integration.tcp_door import Door
from tests.long import rest_long
from tests.unit.db_connector.sink_contract import Identity, ReplacingSinkContract, Stored, expected, place
from tests.unit.db_connector.test_contract import joined

if TYPE_CHECKING:
    from tests.integration.conftest import InfluxdbAccess

TABLE = "public.joined"


def sink_at(server: PostgresqlServer, database: str, **settings: Any) -> PostgresqlSink:
    given = {"port": server.port, "database": database, "password": PASSWORD, "table": TABLE, **settings}
    own = ConnectorSettings.model_validate({"request_timeout": "3s"})
    return PostgresqlSink(PostgresqlSettings.model_validate(given), own, "ms")


def stored_in(server: PostgresqlServer, database: str, table: str = TABLE) -> Stored:
    """Return all rows, after checking that ``time`` is ``time_ns`` in microseconds."""
    found: Stored = {}
    with server.connect(database) as connection:
        if connection.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,):
            return {}
        rows: list[Any] = connection.execute(
            "SELECT join_name, thing, quantity, time_ns, half, tie, result, left_value, right_value, row_values,"  # noqa: S608 - the test's own table
            f" (extract(epoch FROM time) * 1000000)::numeric, id FROM {table}"
        ).fetchall()
    for *identity, result, left, right, columns, time_us, id_text in rows:
        named = {"result": result, "left": left, "right": right, **(columns or {})}
        key = Identity(*identity)
        assert int(time_us) == key.time_ns // 1000
        assert id_text.startswith(key.join)
        assert key not in found
        found[key] = {name: value for name, value in named.items() if value is not None}
    return found


class Stand:
    def __init__(self, server: PostgresqlServer) -> None:
        self._server, self.database = server, server.new_database()
        self.sink, self.missing = sink_at(server, self.database), sink_at(server, "missing")

    def stored(self) -> Stored:
        return stored_in(self._server, self.database)


@pytest.fixture
def stand(postgresql: PostgresqlServer) -> Iterator[Stand]:
    stand = Stand(postgresql)
    yield stand
    stand.sink.close()
    stand.missing.close()


class TestTheSink(ReplacingSinkContract):
    @pytest.fixture
    def sink_stand(self, stand: Stand) -> Stand:
        return stand


def line_of(sink: PostgresqlSink, number: int, thing: str = "R1") -> bytes:
    pair = joined(thing, twice_ns=2_000_000 * number, identity=f"power:0:{number}:{number}")
    return sink.encode(pair, place(number))


def test_a_table_is_created_in_its_schema_and_one_that_is_there_is_used(
    postgresql: PostgresqlServer, stand: Stand
) -> None:
    sinks = [sink_at(postgresql, stand.database, table=table) for table in (TABLE, "plant.joined", TABLE)]
    with postgresql.connect(stand.database) as connection:
        connection.execute("CREATE SCHEMA plant")
    for number, sink in enumerate(sinks):
        sink.write([line_of(sink, number)])
        sink.close()
    assert [len(stored_in(postgresql, stand.database, table)) for table in (TABLE, "plant.joined")] == [2, 1]


def test_a_table_with_other_columns_is_an_operators_mistake(postgresql: PostgresqlServer, stand: Stand) -> None:
    with postgresql.connect(stand.database) as connection:
        connection.execute("CREATE TABLE joined (id text PRIMARY KEY, result integer)")
    for _ in range(3):  # it is checked at each attempt
        with pytest.raises(MisconfiguredError, match=r"not have the columns half boolean, .*result double precision"):
            stand.sink.probe()
    with postgresql.connect(stand.database) as connection:
        connection.execute("DROP TABLE joined")
    stand.sink.write([line_of(stand.sink, 1)])
    assert len(stand.stored()) == 1


def test_a_table_that_is_dropped_while_the_service_runs_is_created_again(
    postgresql: PostgresqlServer, stand: Stand
) -> None:
    stand.sink.write([line_of(stand.sink, 1)])
    with postgresql.connect(stand.database) as connection:
        connection.execute("DROP TABLE joined")
    with pytest.raises(MisconfiguredError, match="does not exist"):
        stand.sink.write([line_of(stand.sink, 2)])
    stand.sink.write([line_of(stand.sink, 2)])
    assert len(stand.stored()) == 1


def test_rows_that_a_constraint_refuses_are_found_and_all_others_written(
    postgresql: PostgresqlServer, stand: Stand
) -> None:
    stand.sink.probe()
    with postgresql.connect(stand.database) as connection:
        connection.execute("ALTER TABLE joined ADD CONSTRAINT known CHECK (thing <> 'unknown')")
    bad = {3, 40, 41}
    lines = [line_of(stand.sink, number, "unknown" if number in bad else "R1") for number in range(64)]
    writer = Writer(stand.sink, backoff_min_s=0.1, backoff_max_s=0.1, wait=lambda _s: True)
    refusals = writer.write(lines)
    assert {refusal.index for refusal in refusals} == bad
    assert all('violates check constraint "known"' in refusal.reason for refusal in refusals)
    assert len(stand.stored()) == 64 - len(bad)


def test_a_replay_does_not_even_touch_the_rows(postgresql: PostgresqlServer, stand: Stand) -> None:
    lines = [line_of(stand.sink, number) for number in range(50)]
    versions = []
    for _ in range(2):
        stand.sink.write(lines)
        with postgresql.connect(stand.database) as connection:
            versions.append(connection.execute("SELECT id, xmin::text FROM joined ORDER BY id").fetchall())
    assert versions[0] == versions[1]


def test_a_name_with_nul_has_no_line(stand: Stand) -> None:
    for name in ("a\0b", "\\u0000\0"):
        with pytest.raises(ValueError, match="NUL"):
            stand.sink.encode(joined(name), place(0))
    stand.sink.write([stand.sink.encode(joined("a\\u0000b"), place(0))])
    assert [identity.thing for identity in stand.stored()] == ["a\\u0000b"]


@pytest.mark.parametrize("password", ["wrong secret", None])
def test_a_wrong_password_is_in_no_message(postgresql: PostgresqlServer, password: str | None) -> None:
    with pytest.raises(UnavailableError, match=r"the user name and the password in \[postgresql\] right") as raised:
        sink_at(postgresql, "postgres", password=password).probe()
    assert "wrong secret" not in str(raised.value)


def test_a_user_who_may_not_write_is_told(postgresql: PostgresqlServer, stand: Stand) -> None:
    stand.sink.probe()
    reader = f"reader_{stand.database}"
    with postgresql.connect(stand.database) as connection:
        connection.execute(f"CREATE ROLE {reader} LOGIN PASSWORD '{PASSWORD}'")
        connection.execute(f"GRANT SELECT ON joined TO {reader}")
    with pytest.raises(MisconfiguredError, match=rf"permission denied for table joined.*the user {reader} may do"):
        sink_at(postgresql, stand.database, username=reader).probe()


def test_what_only_an_operator_can_change_refuses_no_row(postgresql: PostgresqlServer, stand: Stand) -> None:
    """Results must wait for a partition or a correction of the table, and not become dead letters."""
    stand.sink.probe()
    with postgresql.connect(stand.database) as connection:
        connection.execute("ALTER TABLE joined ADD COLUMN site text NOT NULL")
    with pytest.raises(MisconfiguredError, match="site"):
        stand.sink.write([line_of(stand.sink, 1)])
    with postgresql.connect(stand.database) as connection:
        connection.execute("ALTER TABLE joined RENAME TO whole")
        connection.execute("ALTER TABLE whole DROP COLUMN site")
        connection.execute("CREATE TABLE joined (LIKE whole INCLUDING INDEXES) PARTITION BY RANGE (time)")
    with pytest.raises(MisconfiguredError, match="no partition of relation"):
        stand.sink.write([line_of(stand.sink, 1)])
    with postgresql.connect(stand.database) as connection:
        connection.execute("CREATE TABLE of_all PARTITION OF joined DEFAULT")
    stand.sink.write([line_of(stand.sink, 1)])
    assert len(stand.stored()) == 1


def test_a_trigger_that_forbids_the_table_refuses_no_row(postgresql: PostgresqlServer, stand: Stand) -> None:
    with postgresql.connect(stand.database) as connection:
        connection.execute(
            "CREATE FUNCTION forbid() RETURNS event_trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'no table here'; END $$"
        )
        connection.execute("CREATE EVENT TRIGGER forbid ON ddl_command_start EXECUTE FUNCTION forbid()")
    for _ in range(3):
        with pytest.raises(MisconfiguredError, match="no table here"):
            stand.sink.write([line_of(stand.sink, 1)])
    with postgresql.connect(stand.database) as connection:
        connection.execute("DROP EVENT TRIGGER forbid")
    stand.sink.write([line_of(stand.sink, 1)])
    assert len(stand.stored()) == 1


def test_a_database_of_another_encoding_refuses_only_what_it_cannot_hold(postgresql: PostgresqlServer) -> None:
    name = postgresql.new_database("ENCODING 'LATIN1' TEMPLATE template0")
    sink = sink_at(postgresql, name)
    sink.write([line_of(sink, 1, "caf\u00e9")])
    with pytest.raises(RefusedError, match="has no equivalent"):
        sink.write([line_of(sink, 2, "10 \u20ac")])
    sink.close()
    assert [identity.thing for identity in stored_in(postgresql, name)] == ["caf\u00e9"]


def test_a_server_that_stops_answering_is_unavailable(postgresql: PostgresqlServer, stand: Stand) -> None:
    door = Door("127.0.0.1", postgresql.port, hold_after=20_000)
    door.open()
    sink = sink_at(postgresql, stand.database, port=door.port)
    sink.probe()
    lines = [line_of(sink, number) for number in range(500)]
    with pytest.raises(UnavailableError, match="timeout"):
        sink.write(lines)
    door.release()
    sink.write(lines)
    sink.close()
    door.shut()
    assert len(stand.stored()) == 500


def test_a_server_that_crashes_or_hangs_is_unavailable_and_writes_continue_afterwards(
    postgresql: PostgresqlServer, stand: Stand
) -> None:
    stand.sink.write([line_of(stand.sink, 1)])
    with postgresql.crashed():
        for _ in range(2):
            with pytest.raises(UnavailableError):
                stand.sink.write([line_of(stand.sink, 2)])
    stand.sink.write([line_of(stand.sink, 2)])
    with postgresql.connect(stand.database) as connection, connection.transaction():
        connection.execute("LOCK TABLE joined")
        with pytest.raises(UnavailableError, match="timeout"):
            stand.sink.write([line_of(stand.sink, 3)])
    stand.sink.write([line_of(stand.sink, 3)])
    assert len(stand.stored()) == 3


@pytest.fixture
def pipeline(
    kafka: str, influxdb: InfluxdbAccess, postgresql: PostgresqlServer, stand: Stand, tmp_path: Path
) -> Iterator[Pipeline]:
    for pipeline in db_connector_pipeline(kafka, influxdb, tmp_path):
        door = Door("127.0.0.1", postgresql.port)
        door.open()
        pipeline.environment = {
            "LSB_DB_CONNECTOR__SINK": "postgresql",
            "LSB_POSTGRESQL__PORT": str(door.port),
            "LSB_POSTGRESQL__DATABASE": stand.database,
            "LSB_POSTGRESQL__PASSWORD": PASSWORD,
            "LSB_POSTGRESQL__TABLE": TABLE,
        }
        pipeline.door.shut()
        pipeline.door = door
        yield pipeline


def stored_for(pairs: list[tuple[Joined, int]]) -> Stored:
    stored = dict(expected(pair, twice_ns) for pair, twice_ns in pairs)
    assert len(stored) == len(pairs)
    return stored


def test_committed_results_end_up_as_exactly_their_rows(pipeline: Pipeline, stand: Stand) -> None:
    pairs = pairs_of(5_000, seed=1)
    pipeline.produce(values_of(pairs))
    pipeline.produce(values_of(pairs_of(100, seed=2)[50:]), abort=True)
    row = AlignedRow("R 1", "spindle", 7, 9.0, "spindle:0:301", {"speed": None, "a.b-c": 2.5}, "1")
    pipeline.produce([(0, encode(row)), (1, b"no result")])
    process = pipeline.start()
    pipeline.wait_until_drained()
    pipeline.stop(process)
    identity = Identity("spindle", "R 1", "spindle", 7_000_000, half=False, tie="1")
    assert stand.stored() == {**stored_for(pairs), identity: {"result": 9.0, "a.b-c": 2.5}}
    assert len(pipeline.dead_letters()) == 1


@pytest.mark.parametrize("seed", rest_long(11, 12))
def test_kills_at_any_moment_lose_and_duplicate_nothing(
    pipeline: Pipeline, stand: Stand, postgresql: PostgresqlServer, seed: int
) -> None:
    pairs = pairs_of(12_000, seed)

    def crash() -> None:
        with postgresql.crashed():
            pass

    pipeline.write_with_kills(values_of(pairs), seed, crash)
    assert stand.stored() == stored_for(pairs)


def test_nothing_is_missing_after_an_outage(pipeline: Pipeline, stand: Stand) -> None:
    pairs = pairs_of(6_000, seed=7)
    pipeline.write_with_an_outage(pairs, lambda: len(stand.stored()) > 0, "PostgreSQL")
    assert stand.stored() == stored_for(pairs)
