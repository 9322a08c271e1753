"""An application on real Kafka with its own topics: settings, joiner processes, data, verification.

The data is generated from a seed: several things across all partitions, three quantities, disorder, equal times,
repeated ids, watermarks. The tester, which shares no code with the joiner, verifies the results.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from broker.kafka.topics import data_topic_specs, ensure_topics
from broker.partitioner import partition_of
from broker.settings import load_settings
from broker.wire.records import Rejected, decode_rejected
from joiner.check.command import main as tester
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.model import Checkpoint
from joiner.runtime.settings import JoinerSettings, replica_settings
from tests.integration.joiner_process import UNITS, Joiner
from tests.integration.services import (
    DEADLINE_S,
    ends_of,
    read_topic,
    run_service,
    start_service,
    topic_reader,
    wait_until,
    wait_until_decided,
)

PARTITIONS = UNITS
SPARK_STARTS_S = 120.0
"""The deadline for Spark, whose first batch takes twenty seconds, and longer on a busy machine."""
SPARK_STOPS_S = 14.0
"""How long a stage may take to stop: it exits by force after 12 s, and its JVM needs a moment to notice."""
_FLOWING_BATCH = 40
_FLOWING_BETWEEN_S = 0.2
"""For `flowing`: entries in a batch, and time between batches."""
_UNREADABLE_EVERY = 20
REPEATS_MAX = 2
IN_VAIN = re.compile("in time|reclaimed|not confirmed")
"""Why a unit was not moved if a busy machine has kept a process from its part in time. Users then order it again."""
_LOOK_S = 0.1
"""The time between two looks at the checkpoints, each of which reads from Kafka."""
BASE_MS = 1_554_096_460_000
TOPICS = ("data", "out", "late", "rejected", "unmatched")
QUANTITIES = ("speed", "torque", "command")

SETTINGS = """\
[kafka]
bootstrap_servers = "{bootstrap}"

[topics]
{topics}
partitions = {partitions}

[application]
name = "{name}"
session_timeout = "6s"
{application}

[[join]]
name = "power"
left = "speed"
right = "torque"
function = "joiner.functions:spindle_power"
output = "mechPower"
{power}

[[join]]
name = "gap"
left = "command"
right = "speed"
function = "difference"
output = "speedGap"
tolerance = "{tolerance}"
lateness = ["1s", "500ms"]
emit_unmatched = "both"

{aligns}
"""

ALIGNS = """
[[align]]
name = "table"
driver = "torque"
lateness = "500ms"

[align.columns]
speed = { rule = "linear", tolerance = "20s", lateness = "1s" }
heading = { stream = "speed", rule = "linear", period = 360.0 }
command = { on_missing = "drop", tolerance = "5s" }
near = { stream = "command", rule = "nearest", tolerance = "3s" }
"""
"""An align for the data of `seeded_entries`."""


class Entry(NamedTuple):
    """A record to produce: its Kafka key, its value, and its partition unless the key determines it."""

    key: str
    value: bytes | None
    partition: int | None = None


def record(thing: str, quantity: str, time_ms: Any, result: Any, identity: str) -> Entry:
    """Return a record for the data topic."""
    content = {"thing": thing, "quantity": quantity, "phenomenonTime": time_ms, "result": result, "id": identity}
    return Entry(thing, json.dumps(content).encode())


def seeded_entries(seed: int, count: int, things: int = 7) -> list[Entry]:
    """Return the first ``count`` entries of `all_seeded_entries`."""
    return [*itertools.islice(all_seeded_entries(seed, things), count)]


def all_seeded_entries(seed: int, things: int = 7) -> Iterator[Entry]:
    """Yield entries without end: ascending times, some out of order, equal, late or redelivered, and watermarks."""
    draw = random.Random(seed)
    names = things_over_all_units(things)
    clock = [BASE_MS + draw.randrange(5000) for _ in range(things)]
    sent: deque[Entry] = deque(maxlen=40)
    for number in itertools.count():
        which = draw.randrange(things)
        thing = names[which]
        chance = draw.random()
        if chance < 0.03 and sent:
            sent.append(draw.choice(sent))
        elif chance < 0.05:
            watermark: dict[str, Any] = {
                "mark": clock[which] - draw.randrange(3000),
                "quantity": draw.choice(QUANTITIES),
            }
            sent.append(Entry(thing, json.dumps(watermark | {"thing": thing}).encode()))
        else:
            clock[which] += draw.choice([0, 0, 1, 7, 130, 900])
            back = draw.choice([0, 0, 0, 0, 300, 900, 2500]) if chance > 0.8 else 0
            quantity = draw.choice([*QUANTITIES, *QUANTITIES, "temperature"])
            sent.append(record(thing, quantity, clock[which] - back, round(draw.uniform(-50, 500), 3), f"e{number}"))
        yield sent[-1]


def things_over_all_units(count: int) -> list[str]:
    """Return the names of ``count`` things, assigned round-robin to the units."""
    names: list[str] = []
    for number in range(1000):
        if len(names) < count and partition_of(f"R{number}".encode(), PARTITIONS) == len(names) % PARTITIONS:
            names.append(f"R{number}")
    return names


def found_of(findings: dict[str, Any], what: str, operator: str) -> int:
    """Return how many outputs of a kind the tester has found that were expected from a join or an align."""
    (found,) = (one["found"] for one in findings["compared"] if (one["what"], one["join"]) == (what, operator))
    return int(found)


@dataclass
class Application:
    """An application with its own topics."""

    bootstrap: str
    folder: Path
    tolerance: str = "500ms"
    application: str = 'snapshot_interval = "700ms"\nsnapshot_records = 400'
    power: str = ""
    aligns: str = ""
    """The sections of aligns, if there are any."""
    partitions: int = PARTITIONS
    runner: str = "run"
    """The command that starts a joiner."""
    data_format: str = "json"
    data: str = ""
    """The input topic, if it belongs to another application."""
    replica: int = 0
    """The replica that is waited for and verified."""
    name: str = field(default_factory=lambda: f"j{uuid.uuid4().hex[:10]}")
    started: list[Joiner] = field(default_factory=list)
    _admin: AdminClient | None = None
    _producer: Producer | None = None

    @property
    def config(self) -> Path:
        """The path of the settings file, written with the current values of the fields."""
        topics = "\n".join(f'{kind} = "{self.topic(kind)}"' for kind in TOPICS)
        topics += f'\ndata_format = "{self.data_format}"'
        text = SETTINGS.format(
            bootstrap=self.bootstrap,
            topics=topics,
            partitions=self.partitions,
            name=self.name,
            application=self.application,
            tolerance=self.tolerance,
            power=self.power,
            aligns=self.aligns,
        )
        path = self.folder / "lsb.toml"
        # Replaced atomically, because a joiner may be starting.
        draft = path.with_suffix(".new")
        draft.write_text(text)
        draft.replace(path)
        return path

    def topic(self, kind: str) -> str:
        """Return the name of a topic of this application."""
        return self.data if kind == "data" and self.data else f"{self.name}.{kind}"

    def settings(self) -> JoinerSettings:
        """Return the settings as the joiner reads them."""
        return replica_settings(load_settings(JoinerSettings, self.config), self.replica)

    def admin(self) -> AdminClient:
        """Return a client for describing and changing topics."""
        # Kept, because a client that is garbage-collected never receives its responses.
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return self._admin

    def create_topics(self) -> None:
        """Create the data topics, before the joiner does."""
        self._producer = None  # it may know topics of the same names that were deleted
        ensure_topics(self.admin(), data_topic_specs(self.settings().topics))

    def start(
        self,
        *arguments: str,
        instance: str = "one",
        module: str = "joiner",
        command: str = "",
        **environment: str,
    ) -> Joiner:
        """Start `runner` or another ``command`` of the joiner, or of another ``module`` with the same commands."""
        log = self.folder / f"joiner-{len(self.started)}.log"
        given = ["--config", str(self.config), "--instance", instance, *arguments]
        process = start_service(module, command or self.runner, *given, environment=environment, log=log)
        patience_s = (SPARK_STARTS_S, SPARK_STOPS_S) if (command or self.runner) == "spark" else ()
        joiner = Joiner(process, log, *patience_s)
        self.started.append(joiner)
        return joiner

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the joiner and wait until it exits."""
        return run_service("joiner", *arguments, "--config", str(self.config), environment=environment)

    def produce(self, entries: Iterable[Entry], topic: str = "data") -> None:
        """Write entries to a topic. Return when Kafka has acknowledged all of them."""
        # Kept, because it takes longer to connect than to send. Idempotent, so that retries preserve the order.
        producer = self._producer or Producer(
            {"bootstrap.servers": self.bootstrap, "message.max.bytes": 3_000_000, "enable.idempotence": True}
        )
        self._producer = None
        failed: list[object] = []

        def note(error: object, _message: object) -> None:
            if error is not None:
                failed.append(error)

        for entry in entries:
            partition = self.unit_of(entry.key) if entry.partition is None else entry.partition
            producer.produce(self.topic(topic), entry.value, entry.key.encode(), partition, on_delivery=note)
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        assert not failed, failed[:3]
        self._producer = producer

    def unit_of(self, thing: str) -> int:
        """Return the unit of a thing."""
        return partition_of(thing.encode(), self.partitions)

    def outsider(self, unit: int) -> Producer:
        """Return a new producer that has initialised a unit's transactional id."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": f"{self.name}-{unit}"})
        producer.init_transactions(DEADLINE_S)
        return producer

    def checkpoints(self) -> dict[int, Checkpoint]:
        """Return the newest checkpoint of each unit that has one."""
        with closing(Readers(self.settings(), SystemClock())) as readers:
            return self._checkpoints(readers)

    def _checkpoints(self, readers: Readers) -> dict[int, Checkpoint]:
        try:
            found = {unit: read_checkpoint(readers, unit) for unit in range(self.partitions)}
        except KafkaException:
            return {}  # the state topic is being created
        return {unit: checkpoint for unit, checkpoint in found.items() if checkpoint is not None}

    def ends(self) -> dict[int, dict[str, int]]:
        """Return the last stable offsets of the input topics, by unit."""
        with closing(topic_reader(self.bootstrap, f"{self.name}-watch")) as consumer:
            found = {topic: ends_of(consumer, topic, self.partitions) for topic in self.settings().input_topics}
        return {unit: {topic: by_unit[unit] for topic, by_unit in found.items()} for unit in range(self.partitions)}

    def wait_until_decided(self, kind: str = "data") -> None:
        """Wait until no transaction is open in a topic."""
        wait_until_decided(self.bootstrap, self.topic(kind), self.partitions)

    def wait_until_through(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait until every unit has committed all input that is there now."""
        ends = self.ends()

        def is_through() -> bool:
            running = [joiner for joiner in self.started if joiner.process.poll() is None]
            assert running, f"no joiner is left:\n{self.started[-1].text()[-3000:]}"
            found = self._checkpoints(readers)
            # More input may arrive in the meantime, for example watermarks from the application before.
            return found.keys() == ends.keys() and all(
                found[unit].offsets.keys() == at.keys()
                and all(found[unit].offsets[topic] >= end for topic, end in at.items())
                for unit, at in ends.items()
            )

        # The client stays connected while it waits.
        with closing(Readers(self.settings(), SystemClock())) as readers:
            wait_until(is_through, f"all input of {self.name} is consumed and committed", deadline_s, _LOOK_S)

    def remove_records(self) -> None:
        """Delete all current input, as retention would."""
        ends = self.ends()
        cut = [TopicPartition(topic, unit, end) for unit, at in ends.items() for topic, end in at.items()]
        for future in self.admin().delete_records(cut, operation_timeout=DEADLINE_S).values():
            future.result()

    def values(self, kind: str) -> list[bytes]:
        """Return the committed values of a topic."""
        return [stored.value for stored in read_topic(self.bootstrap, self.topic(kind), self.partitions)]

    def rejected(self) -> dict[tuple[int, int], Rejected]:
        """Return the dead letters by the partition and offset of their input."""
        dead_letters = [decode_rejected(value) for value in self.values("rejected")]
        return {(dead_letter.partition, dead_letter.offset): dead_letter for dead_letter in dead_letters}

    def verify(self, *, merged: bool = False) -> dict[str, Any]:
        """Return the tester's findings about `replica` or the merged outputs. Fail if there is a difference."""
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        which = ["--merged"] if merged else ["--replica", str(self.replica)]
        status = tester(["verify", "--config", str(self.config), "--json", str(report), *which])
        findings: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
        assert status == 0, findings
        return findings

    def close(self) -> None:
        """Kill running joiners and delete the topics."""
        for joiner in self.started:
            joiner.kill()
        self._producer = None
        names = [
            *(self.topic(kind) for kind in TOPICS),
            *(f"{self.name}.{kind}" for kind in ("state", "control", "audit", "other", "elsewhere")),
            *(f"{self.name}.elsewhere.{kind}" for kind in TOPICS),
            *(f"{self.topic(kind)}.{part}" for kind in TOPICS if kind != "data" for part in ("r1", "merged")),
            *(f"{self.name}.{kind}" for kind in ("r1.state", "r1.control", "merged.state")),
        ]
        for future in self.admin().delete_topics(names, operation_timeout=DEADLINE_S).values():
            future.exception()  # topics that were never created cannot be deleted


def application(kafka: str, folder: Path, **options: Any) -> Iterator[Application]:
    """Yield an application, and remove it at the end. For fixtures."""
    made = Application(kafka, folder, **options)
    yield made
    made.close()


def run_once(app: Application, seed: int, count: int = 600) -> None:
    """Produce some data, run a joiner until it has consumed all of it, then stop the joiner."""
    app.create_topics()
    app.produce(seeded_entries(seed, count))
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0


def refusal(app: Application, *arguments: str, **environment: str) -> str:
    """Start a joiner that must end by itself with status 1. Return its log."""
    joiner = app.start(*arguments, **environment)
    assert joiner.ends() == 1, joiner.text()
    assert "Traceback" not in joiner.text()
    return joiner.text()


def moved_to(app: Application, site: str) -> subprocess.CompletedProcess[str]:
    """Order to move all units to a site. Repeat the order if a busy machine has kept a process from its part in time.

    Return the last order.
    """
    done = app.command("move", "--to", site)
    for _ in range(REPEATS_MAX):
        if not done.returncode or not IN_VAIN.search(done.stdout):
            break
        done = app.command("move", "--to", site)
    return done


@contextmanager
def flowing(app: Application, seed: int, *, with_unreadable: bool = False) -> Iterator[None]:
    """Produce small batches for the duration of the block. ``with_unreadable``: some entries become dead letters."""
    app.create_topics()
    stop = threading.Event()
    entries = all_seeded_entries(seed)
    if with_unreadable:
        entries = _with_unreadable(entries)

    def feed() -> None:
        while not stop.is_set():
            app.produce([*itertools.islice(entries, _FLOWING_BATCH)])
            stop.wait(_FLOWING_BETWEEN_S)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        stop.set()
        feeder.join()


def _with_unreadable(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Yield the entries, and in between some that cannot be read, in each partition in turn."""
    for number, entry in enumerate(entries):
        if number % _UNREADABLE_EVERY == 0:
            yield Entry("", b"{", number // _UNREADABLE_EVERY % PARTITIONS)
        yield entry
