"""Writes results to a table of PostgreSQL, each as one row.

The rows of a write are one JSON document, which one statement inserts, so they need no temporary table. A row that is
already there is updated only if it differs, so a replay writes nothing.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg
from psycopg import sql

from broker.times import microsecond_of
from broker.wire.records import join_of
from db_connector.sinks.sink import (
    MisconfiguredError,
    RefusedError,
    UnavailableError,
    UnrepresentableError,
    WriteError,
    columns_of,
    reason_of,
    time_of,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from db_connector.settings import ConnectorSettings, PostgresqlSettings
    from db_connector.sinks.sink import Place, Result

COLUMNS: Final = {
    "time": "timestamp with time zone",
    "id": "text",
    "join_name": "text",
    "thing": "text",
    "quantity": "text",
    "tie": "text",
    "time_ns": "bigint",
    "half": "boolean",
    "result": "double precision",
    "left_value": "double precision",
    "right_value": "double precision",
    "row_values": "jsonb",
}
"""The columns of the table and their types."""

_NULLABLE: Final = ("result", "left_value", "right_value", "row_values")

_KEY: Final = ("id", "time")
"""The primary key. It includes the time because TimescaleDB requires that of every unique index."""

_NS_IN_S: Final = 1_000_000_000
_MS_IN_S: Final = 1_000

_WAIT_S: Final = 0.1
_CONNECT_S_MIN: Final = 2
"""The shortest time in which libpq can be told to connect."""

_ANSWER_S: Final = 1.0
"""How much longer than the statement may take to wait for the server, which then reports that it has cancelled it."""

_REFUSES_ROWS: Final = frozenset({"22", "23", "54"})
"""Classes of errors that are about the data: values, constraints and limits.

https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

_MISCONFIGURED: Final = frozenset({"0A", "23", "3F", "42", "P0"})
"""Classes of errors about features, schemas, tables and permissions; also constraints that say nothing about a row, and
what a trigger raises."""

_encoder: Final = msgspec.json.Encoder()


class _Connection(psycopg.Connection[Any]):
    """A connection whose requests fail after ``timeout_s``, even if the server or the network has stopped."""

    timeout_s: float | None = None

    def wait(self, gen: Any, interval: float = _WAIT_S, timeout: float | None = None) -> Any:
        """See `psycopg.Connection.wait`."""
        return super().wait(gen, interval, self.timeout_s if timeout is None else timeout)


class PostgresqlSink:
    """A table of PostgreSQL, over one persistent connection. It is created if it does not exist."""

    name = "PostgreSQL"

    def __init__(self, postgresql: PostgresqlSettings, settings: ConnectorSettings, time_unit: str) -> None:
        """``time_unit``: the unit of the results' times. Raises SettingsError if the password file cannot be read."""
        self._settings, self._time_unit = postgresql, time_unit
        self._password = postgresql.secret()
        self._timeout_s = settings.request_timeout / _NS_IN_S
        self._table = sql.Identifier(*postgresql.table.split("."))
        self._insert = _insert_into(self._table)
        self._connection: _Connection | None = None

    @property
    def place(self) -> str:
        """See `Sink.place`."""
        at = self._settings
        return f"PostgreSQL at {at.host}:{at.port}, database {at.database}, table {at.table}"

    @property
    def target(self) -> str:
        """See `Sink.target`."""
        return f"table {self._settings.table} in {self._settings.database}, rows of form 1"

    def begin(self, topic_id: str) -> None:
        """See `Sink.begin`. It does not matter, because a result is identified by itself."""

    def encode(self, result: Result, place: Place) -> bytes:  # noqa: ARG002 - as above
        """Return the row of a result as a JSON object."""
        time_ns, half = time_of(result, self._time_unit)
        values = values_of(result)
        row = {
            "time": microsecond_of(time_ns).isoformat(),
            "id": result.id,
            "join_name": join_of(result.id),
            "thing": result.thing,
            "quantity": result.quantity,
            "tie": result.tie,
            "time_ns": time_ns,
            "half": half,
            "result": values.get("result"),
            "left_value": values.get("left"),
            "right_value": values.get("right"),
            "row_values": columns_of(result),
        }
        line = _encoder.encode(row)
        if rb"\u0000" in line and _has_nul(row):
            raise UnrepresentableError("a name contains the character NUL, which PostgreSQL cannot store")
        return line

    def probe(self) -> None:
        """See `Sink.probe`."""
        self.write([])

    def write(self, lines: Sequence[bytes]) -> None:
        """See `Sink.write`."""
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.execute(self._insert, (f"[{b','.join(lines).decode()}]",))
        except psycopg.Error as error:
            if _refuses_rows(error):
                raise RefusedError(reason_of(error)) from error
            # The next write connects again, and checks the table again.
            self.close()
            raise self._interpret(error) from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> _Connection:
        """Connect, and create the table if it does not exist. Raises `WriteError`."""
        own = self._settings
        try:
            connection = _Connection.connect(
                autocommit=True,
                host=own.host,
                port=own.port,
                dbname=own.database,
                user=own.username,
                password=self._password,
                client_encoding="utf8",
                application_name="db_connector",
                connect_timeout=max(_CONNECT_S_MIN, math.ceil(self._timeout_s)),
                # Without certificates, libpq's default applies.
                sslmode="verify-full" if own.tls_ca_file else None,
                sslrootcert=str(own.tls_ca_file) if own.tls_ca_file else None,
            )
        except psycopg.Error as error:
            raise UnavailableError(
                f"{self.place}: {reason_of(error)}; is PostgreSQL running there, and are the database, the user name"
                " and the password in [postgresql] right?"
            ) from error
        try:
            self._prepare(connection)
        except psycopg.Error as error:
            connection.close()
            raise self._interpret(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: _Connection) -> None:
        """Set the timeouts, and create or check the table. Raises psycopg.Error or `MisconfiguredError`."""
        connection.timeout_s = self._timeout_s + _ANSWER_S
        connection.execute(sql.SQL("SET statement_timeout = {}").format(math.ceil(self._timeout_s * _MS_IN_S)))
        name = self._table.as_string()
        if connection.execute("SELECT to_regclass(%s)", (name,)).fetchone() == (None,):
            # In spite of IF NOT EXISTS, this fails if another process creates the table at the same time.
            with suppress(psycopg.errors.UniqueViolation):
                connection.execute(_create(self._table))
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (name,),
        ).fetchall()
        if wrong := COLUMNS.items() - dict(found).items():
            needed = ", ".join(f"{column} {kind}" for column, kind in sorted(wrong))
            raise MisconfiguredError(
                f"the table {self._settings.table} does not have the columns {needed}: alter it, or choose another name"
                " with postgresql.table, and the table is created"
            )

    def _interpret(self, error: psycopg.Error) -> WriteError:
        """Return the error for a request that says nothing about single rows."""
        message = f"{self.place}: {reason_of(error)}"
        if (error.sqlstate or "")[:2] in _MISCONFIGURED:
            return MisconfiguredError(f"{message}; check the table, and what the user {self._settings.username} may do")
        return UnavailableError(message)


def _refuses_rows(error: psycopg.Error) -> bool:
    """Return whether the database refuses rows because of what they contain.

    That is not so if an operator can change it: if there is no partition for them or no row that a foreign key refers
    to, or if the table has a mandatory column of its own.
    """
    if (error.sqlstate or "")[:2] not in _REFUSES_ROWS:
        return False
    has_no_partition = isinstance(error, psycopg.errors.CheckViolation) and error.diag.constraint_name is None
    is_other_column = isinstance(error, psycopg.errors.NotNullViolation) and error.diag.column_name not in COLUMNS
    is_foreign_key = isinstance(error, psycopg.errors.ForeignKeyViolation)
    return not (has_no_partition or is_other_column or is_foreign_key)


def _create(table: sql.Identifier) -> sql.Composed:
    columns = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(name), sql.SQL(kind), sql.SQL("" if name in _NULLABLE else " NOT NULL")
        )
        for name, kind in COLUMNS.items()
    ]
    key = sql.SQL(", ").join(map(sql.Identifier, _KEY))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(
        table, sql.SQL(", ").join(columns), key
    )


def _insert_into(table: sql.Identifier) -> sql.Composed:
    """Return the statement that inserts the rows of a JSON array, its only parameter.

    If the array has several rows with one key, the last one counts, because a statement may update a row only once.
    """
    others = [name for name in COLUMNS if name not in _KEY]
    return sql.SQL(
        "INSERT INTO {table} AS kept ({columns})"
        " SELECT DISTINCT ON ({key}) {columns}"
        " FROM ROWS FROM (json_to_recordset(%s::json) AS ({typed})) WITH ORDINALITY AS given ({columns}, ordinal)"
        " ORDER BY {key}, ordinal DESC"
        " ON CONFLICT ({key}) DO UPDATE SET ({others}) = ROW ({new})"
        " WHERE ({old}) IS DISTINCT FROM ({new})"
    ).format(
        table=table,
        columns=_list(COLUMNS),
        key=_list(_KEY),
        typed=sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in COLUMNS.items()
        ),
        others=_list(others),
        new=_list(others, "excluded"),
        old=_list(others, "kept"),
    )


def _list(names: Sequence[str] | dict[str, str], of: str | None = None) -> sql.Composed:
    prefix = () if of is None else (of,)
    return sql.SQL(", ").join(sql.Identifier(*prefix, name) for name in names)


def _has_nul(row: dict[str, Any]) -> bool:
    texts = [value for value in row.values() if isinstance(value, str)]
    return any("\0" in text for text in (*texts, *(row["row_values"] or ())))
