"""The ``db_connector`` command: loads the settings, runs the service, and stops it on a signal."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from broker.commandline import end_on_signals, imports_of, leave, version_of

with imports_of("db_connector"):
    from confluent_kafka import KafkaException

    from broker.kafka.client_log import client_logger
    from broker.kafka.producer import DeliveryError
    from broker.kafka.topics import TopicError, data_topic_specs, wait_for_topics
    from broker.logs import set_up_logs
    from broker.metrics import TelemetryServer
    from broker.settings import SettingsError, load_settings
    from db_connector.kafka.dead_letters import DeadLetterWriter
    from db_connector.kafka.reader import KafkaFailureError
    from db_connector.progress import Journal
    from db_connector.service import Service
    from db_connector.settings import SINKS, DbConnectorSettings
    from db_connector.sinks.sink import OutputClosedError, OutputFailedError
    from db_connector.writer import Writer, WriterThread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from db_connector.kafka.results import Results
    from db_connector.sinks.sink import Sink

_EPILOG: Final = """\
examples:
  db_connector                                           settings from ./lsb.toml and the environment
  db_connector --config /etc/lsb/lsb.toml                with a different settings file
  LSB_INFLUXDB__URL=http://127.0.0.1:8087 db_connector   with one setting from the environment
  LSB_DB_CONNECTOR__GROUP=look db_connector --sink stdout | jq .result   to a pipe; its own group takes nothing away
  db_connector --journal acknowledged.tsv                also log when each record was acknowledged

Ctrl-C or SIGTERM stops it within 5 s; the next start rereads whatever the database has not acknowledged.
Several processes in the same consumer group share the partitions. Settings: docs/configuration.md.
exit status: 0 stopped by a signal or by the reader of standard output, 1 failed, 2 invalid arguments or settings
"""

_GRACE_S: Final = 8.0
"""When a process that does not end on its own is ended. Whatever is not acknowledged by then is written again."""

log = logging.getLogger("db_connector")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit."""
    leave(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    if options.sink:
        os.environ["LSB_DB_CONNECTOR__SINK"] = options.sink
    set_up_logs("info")
    # The writer reports an unavailable database every ten seconds; urllib3 would log every attempt.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    stop = threading.Event()
    try:
        settings = load_settings(DbConnectorSettings, options.config)
        end_on_signals(stop.set, _GRACE_S, "the database and Kafka")
        with ExitStack() as stack:
            journal = stack.enter_context(Journal(options.journal)) if options.journal else None
            telemetry = stack.enter_context(TelemetryServer(settings.metrics))
            return _serve(settings, stop, journal, telemetry)
    except SettingsError as error:
        print(f"db_connector: invalid settings\n{error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"db_connector: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="db_connector",
        description="Writes the joined pairs and aligned rows in topics.out to a database or to standard output.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (default: lsb.toml if it exists)")
    parser.add_argument("--version", action="version", version=version_of("db_connector"))
    parser.add_argument("--sink", choices=SINKS, help="where to write; takes precedence over db_connector.sink")
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="for measurements: append 'acknowledged_ns<TAB>partition<TAB>first offset<TAB>last offset' to FILE"
        " for each partition of each acknowledged write",
    )
    return parser


def make_sink(settings: DbConnectorSettings) -> Sink:
    """Create the sink that the settings name, without connecting. Its modules are imported only if it is used."""
    own, time_unit = settings.db_connector, settings.events.time_unit
    with imports_of("db_connector"):
        match own.sink:
            case "influxdb":
                from db_connector.sinks.influxdb import InfluxSink  # noqa: PLC0415 - see above

                return InfluxSink(settings.influxdb, own, time_unit)
            case "postgresql":
                from db_connector.sinks.postgresql import PostgresqlSink  # noqa: PLC0415 - see above

                return PostgresqlSink(settings.postgresql, own, time_unit)
            case "delta":
                with imports_of("db_connector", "delta"):
                    from db_connector.sinks.delta import DeltaSink  # noqa: PLC0415 - see above

                return DeltaSink(settings.delta, time_unit)
            case "stdout":
                from db_connector.sinks.stdout import StdoutSink  # noqa: PLC0415 - see above

                return StdoutSink(time_unit)


def _serve(
    settings: DbConnectorSettings, stop: threading.Event, journal: Journal | None, telemetry: TelemetryServer
) -> int:
    own = settings.db_connector
    sink = make_sink(settings)

    def is_over() -> bool:
        telemetry.heartbeat()
        return stop.is_set()

    try:
        # Start the writer before waiting for Kafka: its thread immediately checks whether the database accepts results.
        writer: WriterThread[Results] = WriterThread(
            Writer(
                sink,
                backoff_min_s=own.backoff_min / 1e9,
                backoff_max_s=own.backoff_max / 1e9,
                wait=stop.wait,
            )
        )
        needed = {settings.results_topic, settings.topics.rejected}
        specs = [spec for spec in data_topic_specs(settings.topics, [settings.results_topic]) if spec.name in needed]
        client_log = client_logger("db_connector.librdkafka")
        facts = wait_for_topics(settings.kafka, specs, is_over, log, client_log)
        if facts is None:
            return 0
        sink.begin(facts[settings.results_topic].topic_id)
        dead_letters = DeadLetterWriter(settings.kafka, settings.topics.rejected)
        service = Service(settings, writer, dead_letters, stop, journal, telemetry)
        log.info("writing topic %s of %s to %s", settings.results_topic, settings.kafka.bootstrap_servers, sink.place)
        # Objects created so far live as long as the process. Exempting them from garbage collection saves a few percent
        # of CPU.
        gc.freeze()
        service.run()
    except OutputClosedError as error:
        log.info("%s", error)
    except (TopicError, DeliveryError, KafkaFailureError, OutputFailedError) as error:
        log.error("%s", error)  # noqa: TRY400 - the message is complete; a user needs no stack trace
        return 1
    except KafkaException as error:
        log.error("Kafka: %s", error.args[0].str())  # noqa: TRY400 - as above
        return 1
    return 0


if __name__ == "__main__":
    main()
