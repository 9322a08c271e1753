"""The data source that provides plans to Spark. Spark asks a planning process for offsets, and it asks the driver.

The two processes run on the same machine, both started by Spark, and are connected by a Unix socket in a private
folder.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from joiner.runtime.clock import Clock
from joiner.runtime.runners.spark.plans import Turn, encode_plan

SOURCE: Final = "lsb_plans"
SCHEMA: Final = "slot int, plan binary"
"""``slot`` is the grouping key of the unit."""


_RETRY_WAIT_S: Final = 0.1

_log = logging.getLogger(__name__)


class PlanSource(DataSource):
    """The data source that provides plans to Spark.

    Its options are ``socket``, the address of the driver, and ``slots``, the units' grouping keys, separated by commas.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._socket = options["socket"]
        self._slots = [int(slot) for slot in options["slots"].split(",")]

    @classmethod
    def name(cls) -> str:
        """Return the name for ``readStream.format``."""
        return SOURCE

    def schema(self) -> str:
        """Return the schema: one row per plan."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        """Return the reader that provides offsets and rows to Spark."""
        return _PlanReader(self._socket, self._slots)


class _Part(InputPartition):
    def __init__(self, rows: list[tuple[int, bytes]]) -> None:
        self.rows = rows


class _PlanReader(DataSourceStreamReader):
    """Reads plans for Spark. An offset is a `Turn` as JSON, which contains the plans of the batch that ends there."""

    def __init__(self, socket: str, slots: list[int]) -> None:
        self._socket = socket
        self._slots = slots
        self._driver: Connection[Any, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first plan."""
        return _as_offset(Turn())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802 - Spark's signature
        """Request the next offset from the driver, which thereby also decides how much the batch reads."""
        if self._driver is None:
            self._driver = Client(self._socket, "AF_UNIX")
        self._driver.send_bytes(msgspec.json.encode(start))
        try:
            answer = self._driver.recv_bytes()
        except EOFError as error:
            raise ConnectionError("the driver has stopped answering") from error
        return cast("dict[str, Any]", msgspec.json.decode(answer))

    def stop(self) -> None:
        """Exit immediately if Spark has closed the connection.

        Otherwise pyspark would try to report that to Spark, and print a stack trace.
        """
        if isinstance(sys.exception(), EOFError):
            os._exit(0)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return at most one partition, because the rows are few and small."""
        turn = msgspec.convert(end, Turn)
        if start == end or not turn.plans:
            return []
        return [_Part([(self._slots[plan.unit], encode_plan(plan)) for plan in turn.plans])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
        """Return the rows of a batch."""
        assert isinstance(partition, _Part)  # noqa: S101 - for the type checker
        return iter(partition.rows)


def _as_offset(turn: Turn) -> dict[str, Any]:
    return cast("dict[str, Any]", msgspec.to_builtins(turn))


class PlanServer:
    """Runs in the driver and answers the data source's requests for plans.

    ``next_turn`` returns the turn after the given one, or the given one again if there is nothing to do.
    """

    def __init__(self, folder: Path, next_turn: Callable[[Turn], Turn], clock: Clock) -> None:
        self.address = str(folder / "plans")
        self._next_turn, self._clock = next_turn, clock
        self._is_closed = False
        self._listener = Listener(self.address, "AF_UNIX")
        threading.Thread(target=self._serve, name="plans", daemon=True).start()

    def _serve(self) -> None:
        # Clients are served one at a time: Spark starts one planning process for each query.
        while not self._is_closed:
            try:
                with self._listener.accept() as client:
                    self._answer(client)
            except (EOFError, ConnectionError):
                continue
            except Exception as error:  # noqa: BLE001 - without an answer the query fails, and is restarted
                if not self._is_closed:
                    _log.warning("a request for plans could not be answered: %s: %s", type(error).__name__, error)
                    self._clock.sleep(_RETRY_WAIT_S)

    def _answer(self, client: Connection[Any, Any]) -> None:
        while True:
            last = msgspec.json.decode(client.recv_bytes(), type=Turn)
            client.send_bytes(msgspec.json.encode(self._next_turn(last)))

    def close(self) -> None:
        """Stop answering the source."""
        self._is_closed = True
        self._listener.close()


def read_plans(session: SparkSession, server: PlanServer, slots: Sequence[int]) -> Any:
    """Return the streaming DataFrame of plans."""
    session.dataSource.register(PlanSource)
    given = {"socket": server.address, "slots": ",".join(map(str, slots))}
    return session.readStream.format(SOURCE).options(**given).load()
