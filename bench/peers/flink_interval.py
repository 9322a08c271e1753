"""An exactly-once interval join in Flink SQL, for comparison with the neighbour join.

The join runs in Java; PyFlink only starts it. Unlike a neighbour join, it cannot express "the nearest record": it
writes all pairs within the width, and none across a longer pause. Flink's as-of join does not help: ``FOR SYSTEM_TIME
AS OF`` only looks back, and one such join per side would read everything twice.

Its speed depends on how far apart the partitions are in event time. For each record, it scans all held records of the
same thing, and it holds every record that the slowest partition may still need. Therefore, the partitions are read in
parallel and aligned (``scan.watermark.alignment``, small fetches, one task per partition), and every record emits a
watermark. Without this, or with the JVM's default heap and garbage collector, the join was two to four times slower;
with its state in RocksDB it was far slower still. ``--lateness-ms`` is the greatest disorder to allow for; records that
are later than that may lose pairs.

With ``--registry``, the messages are in Avro and in the layout of another program (see `bench.harness.other_layout`).
Flink's own format for them asks the registry for each schema once.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

_PARALLELISM, _INTERVAL = "parallelism.default", "execution.checkpointing.interval"
_DRIFT, _UPDATE = "scan.watermark.alignment.max-drift", "scan.watermark.alignment.update-interval"
_AVRO = "avro-confluent"
_FETCH, _EMIT = "properties.max.partition.fetch.bytes", "scan.watermark.emit.strategy"

SETTINGS = {
    _INTERVAL: "1 s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "pipeline.object-reuse": "true",
    "state.backend.type": "hashmap",
    "table.exec.source.idle-timeout": "5 s",
    "taskmanager.memory.managed.size": "512m",
}
SOURCE = {
    _EMIT: "on-event",
    _DRIFT: "100ms",
    _UPDATE: "20ms",
    "scan.watermark.alignment.group": "records",
    _FETCH: "16384",
}
SINK = {
    "sink.delivery-guarantee": "exactly-once",
    "properties.transaction.timeout.ms": "600000",
    "properties.compression.type": "lz4",
    "properties.linger.ms": "5",
    "properties.batch.size": "1000000",
    "properties.buffer.memory": "134217728",
}
"""Batches are as large as in the joiner's producer, whose librdkafka batches hold up to 1 MB."""

VARIANTS: dict[str, dict[str, str]] = {
    "best": {},
    "fetch-64k": {_FETCH: "65536"},
    "drift-20ms": {_DRIFT: "20ms", _UPDATE: "5ms"},
    "drift-1s": {_DRIFT: "1s", _UPDATE: "100ms"},
    "not-aligned": {_DRIFT: "1 d", _FETCH: "1048576", _EMIT: "on-periodic"},
    "periodic-watermarks": {_EMIT: "on-periodic", "pipeline.auto-watermark-interval": "20 ms"},
    "at-least-once": {"execution.checkpointing.mode": "AT_LEAST_ONCE", "sink.delivery-guarantee": "at-least-once"},
    "rocksdb": {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"},
    "no-object-reuse": {"pipeline.object-reuse": "false"},
    **{f"checkpoint-{ms}ms": {_INTERVAL: f"{ms} ms"} for ms in (20, 50, 100, 200)},
    "checkpoint-10s": {_INTERVAL: "10 s"},
    "sink-128k": {"properties.linger.ms": "20", "properties.batch.size": "131072"},
    "sink-default": {"properties.linger.ms": "0", "properties.batch.size": "16384"},
    "jvm-defaults": {},
    "parallelism-1": {_PARALLELISM: "1"},
    "parallelism-2": {_PARALLELISM: "2"},
}


def main() -> None:
    """Run until stopped."""
    options = _options()
    setup = Setup.of(options)
    _start_java(is_tuned=options.variant != "jvm-defaults")
    config = Configuration()
    for name, value in setup.config.items():
        config.set_string(name, value)
    builder = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(config)
    tables = TableEnvironment.create(builder.build())
    *tables_of_kafka, insert = statements(setup, interval(options.width_ms), interval(options.lateness_ms))
    for statement in tables_of_kafka:
        tables.execute_sql(statement)
    tables.execute_sql(insert).wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("data", help="topic to read")
    parser.add_argument("out", help="topic to write")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--width-ms", type=int, default=16, help="width of the window, to each side")
    parser.add_argument("--lateness-ms", type=int, default=0, help="how far records of a partition may be out of order")
    parser.add_argument("--variant", choices=VARIANTS, default="best")
    parser.add_argument("--state", type=Path, help="folder for the checkpoints")
    parser.add_argument("--registry", default="", help="URL of the schema registry, if the messages are in Avro")
    parser.add_argument(
        "--jars", type=Path, required=True, action="append", help="folder of Flink's Kafka connector, or of its format"
    )
    return parser.parse_args()


class Setup(NamedTuple):
    """A variant's settings for the Flink job, its source table and its sink table."""

    config: dict[str, str]
    source: dict[str, str]
    sink: dict[str, str]

    @classmethod
    def of(cls, options: argparse.Namespace) -> Setup:
        """Return the settings for the given arguments. The variant's settings take precedence."""
        state = (options.state or Path(tempfile.mkdtemp(prefix="flink-"))).absolute()
        kafka = {"connector": "kafka", "properties.bootstrap.servers": options.bootstrap}
        config = SETTINGS | {
            _PARALLELISM: str(options.partitions),
            "pipeline.jars": ";".join(jar.absolute().as_uri() for place in options.jars for jar in place.glob("*.jar")),
            "execution.checkpointing.dir": (state / "checkpoints").as_uri(),
            "state.backend.rocksdb.localdir": str(state / "rocksdb"),
        }
        source = {
            **kafka,
            **SOURCE,
            "topic": options.data,
            "properties.group.id": options.out,
            "scan.startup.mode": "earliest-offset",
            **({"format": _AVRO, f"{_AVRO}.url": options.registry} if options.registry else {"format": "json"}),
        }
        sink = {
            **kafka,
            **SINK,
            "topic": options.out,
            "sink.transactional-id-prefix": f"{options.out}-{uuid.uuid4().hex[:8]}",
            "key.format": "raw",
            "key.fields": "thing",
            "value.format": "json",
        }
        for name, value in VARIANTS[options.variant].items():
            for settings in [one for one in (config, source, sink) if name in one] or [config]:
                settings[name] = value
        return cls(config, source, sink)


def _start_java(*, is_tuned: bool) -> None:
    """Configure the Java process, which starts when the first PyFlink object is created."""
    scratch = tempfile.TemporaryDirectory(prefix="flink-")

    def stop(*_: object) -> None:
        # The Java process exits together with this one and does not delete the files it has unpacked.
        scratch.cleanup()
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    tuned = "-Xms2g -Xmx4g -XX:+UseParallelGC" if is_tuned else ""
    os.environ["JVM_ARGS"] = f"-Djava.io.tmpdir={scratch.name} {os.environ.get('JVM_ARGS', tuned)}"


COLUMNS: Mapping[str, str] = {
    "json": """
            thing STRING, quantity STRING, phenomenonTime BIGINT, `result` DOUBLE, id STRING,
            measured AS TO_TIMESTAMP_LTZ(phenomenonTime, 3)""",
    _AVRO: """
            device ROW<name STRING NOT NULL> NOT NULL, `type` STRING NOT NULL, unixtime BIGINT NOT NULL,
            `value` DOUBLE NOT NULL, `no` STRING NOT NULL,
            thing AS device.name, quantity AS `type`, phenomenonTime AS unixtime, `result` AS `value`, id AS `no`,
            measured AS TO_TIMESTAMP_LTZ(unixtime, 3)""",
}
"""The columns of the source table for each format of the messages."""


def statements(setup: Setup, width: str, lateness: str) -> list[str]:
    """Return the job's SQL statements; the last one is the INSERT. ``width`` and ``lateness`` are SQL intervals."""
    return [
        f"""
        CREATE TABLE records ({COLUMNS[setup.source["format"]]},
            WATERMARK FOR measured AS measured - {lateness}
        ) WITH ({settings_of(setup.source)})""",
        f"""
        CREATE TABLE pairs (thing STRING, `left` STRING, `right` STRING, `result` DOUBLE, phenomenonTime DOUBLE)
        WITH ({settings_of(setup.sink)})""",
        f"""
        INSERT INTO pairs
        SELECT l.thing, l.id, r.id, l.`result` * r.`result`, (l.phenomenonTime + r.phenomenonTime) / 2e0
        FROM (SELECT * FROM records WHERE quantity = 'speed') l
        JOIN (SELECT * FROM records WHERE quantity = 'torque') r
          ON l.thing = r.thing AND r.measured BETWEEN l.measured - {width} AND l.measured + {width}""",  # noqa: S608 - numbers
    ]


def interval(ms: int) -> str:
    """Return ``ms`` as an SQL interval literal."""
    seconds = ms // 1000
    time = f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms % 1000:03}"
    return f"INTERVAL '{seconds // 86400} {time}' DAY TO SECOND(3)"


def settings_of(table: dict[str, str]) -> str:
    """Return the settings of a table as SQL."""
    return ", ".join(f"'{name}' = '{value}'" for name, value in table.items())


if __name__ == "__main__":
    main()
