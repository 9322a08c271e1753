"""Starts Kafka and the joiner for the benchmarks that need them, and writes their settings and records."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import NewTopic

from bench.harness.report import machine
from broker.partitioner import partition_of
from broker.settings import KafkaSettings, load_settings
from broker.stack import LocalStack, ephemeral_stack
from broker.stack.parts import KAFKA_VERSION
from joiner.check.command import main as tester
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import log_range, make_admin, make_consumer
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.settings import ApplicationSettings, JoinerSettings, replica_settings

PARTITIONS: Final = 4
THINGS: Final = 8

BUFFER_RECORDS_MAX: Final = 10_000_000
BUFFER_BYTES_MAX: Final = 10_000_000_000
"""Buffer limits for the joiner, far above its defaults, so that it never stops because it holds too many records."""

FIRST_MS: Final = 1_554_096_460_000
"""The event time of the first record in every benchmark, in ms since the epoch."""

_LOOK_S: Final = 0.5
KAFKAS_OWN: Final = {
    # The local stack uses small log segments so that it starts quickly, but hundreds of transactions per second would
    # fill one in 20 s.
    "offsets.topic.segment.bytes": "104857600",
    "transaction.state.log.segment.bytes": "104857600",
}

LOW_PAUSE_JAVA: Final = ("-Xms2g", "-Xmx2g", "-XX:+AlwaysPreTouch", "-XX:+UseZGC")
"""JVM options for Kafka: the default collector pauses it for up to 120 ms, several times a minute. With a smaller heap,
ZGC runs every few seconds, and takes one of two cores while it does."""

_SETTINGS: Final = """\
[kafka]
bootstrap_servers = "{bootstrap}"

[topics]
data = "{data}"
out = "{name}.out"
late = "{name}.late"
rejected = "{name}.rejected"
unmatched = "{name}.unmatched"
partitions = {partitions}
data_format = "{data_format}"

[application]
name = "{name}"
buffer_records_max = {buffer_records_max}
buffer_bytes_max = {buffer_bytes_max}
results = "{results}"

{operator}"""

_JOIN: Final = """\
[[join]]
name = "power"
left = "speed"
right = "torque"
function = "product"
output = "power"
"""


@contextmanager
def own_kafka(java_options: Sequence[str] | None = None) -> Iterator[tuple[KafkaSettings, Path]]:
    """Start a temporary Kafka broker. Yield its settings and a folder for files."""
    with own_stack(java_options) as (stack, folder):
        yield KafkaSettings(bootstrap_servers=stack.kafka.address), folder


@contextmanager
def own_stack(
    java_options: Sequence[str] | None = None, more: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[LocalStack, Path]]:
    """Start a temporary Kafka broker, with ``more`` server properties. Yield the stack and a folder for files."""
    with ephemeral_stack(say=print) as stack, tempfile.TemporaryDirectory() as folder:
        stack.kafka.more = {"log.message.timestamp.type": "LogAppendTime", **KAFKAS_OWN, **more}
        if java_options is not None:
            stack.kafka.java_options = java_options
        stack.up([stack.kafka])
        yield stack, Path(folder)


def about() -> dict[str, Any]:
    """Return a description of the machine and the versions in use."""
    return machine("confluent-kafka", "msgspec", "numpy") | {"Kafka": KAFKA_VERSION}


def make_topic(kafka: KafkaSettings, name: str, partitions: int, **settings: str) -> None:
    """Create a topic with the given settings, whose names are written with ``_`` in place of ``.``."""
    # Keep the client in a variable: once it is garbage-collected, it receives no responses.
    admin = make_admin(kafka)
    config = {setting.replace("_", "."): value for setting, value in settings.items()}
    (made,) = admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values()
    made.result()


def make_sender(kafka: KafkaSettings) -> Producer:
    """Return a producer for input records."""
    return Producer(kafka.producer_config(linger_ms=50, compression_type="lz4"))


def send(producer: Producer, topic: str, partition: int, record: dict[str, Any]) -> None:
    """Queue a record; wait if the queue is full."""
    send_message(producer, topic, partition, json.dumps(record).encode(), record["thing"].encode())


def send_message(producer: Producer, topic: str, partition: int, value: bytes, key: bytes) -> None:
    """Queue a message; wait if the queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, partition)
        except BufferError:
            producer.poll(0.1)
        else:
            return


class Application:
    """A joiner application with its own topics. ``settings`` are loaded from its settings file."""

    def __init__(
        self,
        kafka: KafkaSettings,
        folder: Path,
        name: str,
        partitions: int,
        data: str,
        *,
        data_format: str = "json",
        results: str = "full",
        quantities: Sequence[str] = (),
    ) -> None:
        """Write the settings file. ``data`` is the input topic.

        ``quantities`` names the driver and the columns of an align, which replaces the join of speed and torque.
        """
        self.data = data
        self.config = folder / f"{name}.toml"
        text = _SETTINGS.format(
            bootstrap=kafka.bootstrap_servers,
            name=name,
            data=data,
            partitions=partitions,
            buffer_records_max=BUFFER_RECORDS_MAX,
            buffer_bytes_max=BUFFER_BYTES_MAX,
            data_format=data_format,
            results=results,
            operator=_align(*quantities) if quantities else _JOIN,
        )
        self.config.write_text(text)
        self.settings = load_settings(JoinerSettings, self.config)

    def add_settings(self, text: str) -> None:
        """Append sections to the settings file."""
        self.config.write_text(self.config.read_text() + text)
        self.settings = load_settings(JoinerSettings, self.config)

    def start(self, *more: str, instance: str = "one", command: str = "run") -> subprocess.Popen[bytes]:
        """Start a process that runs the joiner, or another command of its command-line interface."""
        return subprocess.Popen(self.command(*more, instance=instance, command=command))  # noqa: S603 - the joiner

    def command(self, *more: str, instance: str = "one", command: str = "run") -> list[str]:
        """Return the command that `start` runs."""
        given = ["--config", str(self.config), "--log-level", "warning", "--instance", instance]
        return [sys.executable, "-m", "joiner", command, *given, *more]

    def wait_until_through(self, running: Sequence[subprocess.Popen[bytes]], replica: int = 0) -> None:
        """Wait until the joiners in ``running``, which are those of a replica, have committed the whole input."""
        wanted = ends(self.settings.kafka, self.data, self.settings.topics.partitions)
        settings = replica_settings(self.settings, replica)
        while not self._is_through(settings, wanted):
            if any(process.poll() is not None for process in running):
                raise RuntimeError("a joiner ended unexpectedly")
            time.sleep(_LOOK_S)

    def verify(self, *more: str) -> dict[str, int]:
        """Verify all results with the tester and return its counts: expected, found, missing, doubled, …

        ``more``: further arguments of the tester. Raises FileNotFoundError if it could not check anything.
        """
        report = self.config.with_suffix(".json")
        report.unlink(missing_ok=True)
        tester(["verify", "--config", str(self.config), "--json", str(report), *more])
        total: dict[str, int] = json.loads(report.read_text())["total"]
        return total

    def _is_through(self, settings: JoinerSettings, wanted: list[int]) -> bool:
        try:
            with closing(Readers(settings, SystemClock())) as readers:
                found = [read_checkpoint(readers, unit) for unit in range(len(wanted))]
        except KafkaException:
            return False  # the state topic is being created
        return [one.offsets[self.data] if one else 0 for one in found] == wanted


def _align(driver: str, *columns: str) -> str:
    """Return the settings of an align whose columns hold previous values."""
    rules = ", ".join(f'{column} = {{ rule = "previous" }}' for column in columns)
    return f'[[align]]\nname = "rows"\ndriver = "{driver}"\ncolumns = {{ {rules} }}\n'


def changed_settings(folder: Path) -> list[tuple[str, str, str]]:
    """Return the settings of the joiner that differ from their defaults: the name, the value and the default.

    Settings that name a topic, a server or the application are left out, because they have no useful default.
    """
    application = Application(KafkaSettings(), folder, "name", PARTITIONS, data="data")
    given, defaults = application.settings.application, ApplicationSettings.model_fields
    return [
        (f"application.{name}", f"{getattr(given, name):,}", f"{defaults[name].default:,}")
        for name in sorted(given.model_fields_set - {"name"})
        if getattr(given, name) != defaults[name].default
    ]


def ends(kafka: KafkaSettings, topic: str, partitions: int) -> list[int]:
    """Return the end offsets of a topic's partitions."""
    with closing(make_consumer(kafka, "bench")) as consumer:
        return [log_range(consumer, topic, number)[1] for number in range(partitions)]


def things_over_all_units(kind: str, count: int, partitions: int = PARTITIONS) -> list[tuple[str, int]]:
    """Return ``count`` things, each with its name and partition, distributed evenly over the partitions."""
    things: list[tuple[str, int]] = []
    number = 0
    while len(things) < count:
        name, wanted = f"{kind}-{number}", len(things) % partitions
        if partition_of(name.encode(), partitions) == wanted:
            things.append((name, wanted))
        number += 1
    return things
