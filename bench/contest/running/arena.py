"""Manages the Kafka broker of the contest, the workloads written to it, and the processes of the contenders."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.contest.job import ROOT, Contender, Job
from bench.contest.workload.expected import Expected, expect
from bench.contest.workload.inputs import make, produce, produce_sides
from bench.harness.other_layout import register
from bench.harness.pipeline import PARTITIONS, make_topic
from bench.harness.processes import Tree, folder_bytes, processes
from broker.settings import KafkaSettings
from broker.stack import LocalStack
from joiner.runtime.kafka.clients import make_admin


class FailedError(Exception):
    """Raised if a contender exits or writes no results. The message gives the details."""


@dataclass
class Arena:
    """A Kafka broker, a folder for the contenders' files, and the workloads written to the broker so far."""

    stack: LocalStack
    folder: Path
    _known: dict[tuple[str, int], Expected] = field(default_factory=dict)
    _written: dict[tuple[str, int, int], str] = field(default_factory=dict)

    @property
    def kafka(self) -> KafkaSettings:
        """The Kafka settings."""
        return KafkaSettings(bootstrap_servers=self.stack.kafka.address)

    def expected(self, name: str, records: int) -> Expected:
        """Return the expected results for a workload."""
        if (name, records) not in self._known:
            self._known[name, records] = expect(make(name, records))
        return self._known[name, records]

    def data(self, name: str, records: int, topics: int) -> str:
        """Return the topic that holds a workload, or two topics separated by a comma, one per side.

        The workload is written first if it is missing.
        """
        if (name, records, topics) not in self._written:
            topic, workload = f"data-{len(self._written)}", self.expected(name, records).workload
            self._written[name, records, topics] = self.make_data(topic, topics, workload.partitions)
            if topics == 1:
                produce(self.kafka, topic, workload, register(self.registry()) if workload.is_avro else 0)
            else:
                produce_sides(self.kafka, (f"{topic}-left", f"{topic}-right"), workload)
        return self._written[name, records, topics]

    def registry(self) -> str:
        """Return the URL of the schema registry, which is started if it is not running yet."""
        if self.stack.registry.pid is None:
            self.stack.up([self.stack.registry])
        return self.stack.registry.url

    def make_data(self, topic: str, topics: int, partitions: int = PARTITIONS) -> str:
        """Create one topic, or one per side with event times as Kafka timestamps. Return the names as `data` does."""
        if topics == 1:
            make_topic(self.kafka, topic, partitions)
            return topic
        sides = [f"{topic}-left", f"{topic}-right"]
        for side in sides:
            # The events are years old, so retention by event time would delete them right away.
            make_topic(self.kafka, side, partitions, message_timestamp_type="CreateTime", retention_ms="-1")
        return ",".join(sides)

    def forget(self, name: str, records: int) -> None:
        """Delete a workload and its topics, if they exist. Used for workloads that only one measurement needs."""
        self._known.pop((name, records), None)
        gone = [key for key in self._written if key[:2] == (name, records)]
        topics = [topic for key in gone for topic in self._written.pop(key).split(",")]
        delete_topics(self.kafka, topics)

    def job(self, contender: Contender, topic: str, records: int, *, partitions: int = PARTITIONS) -> Job:
        """Return a new job for a contender, after creating its result topic."""
        name = f"{contender.slug}-{uuid.uuid4().hex[:6]}"
        job = Job(self.kafka, self.folder / name, name, topic, records, partitions=partitions)
        make_topic(self.kafka, job.out, partitions)
        return job

    def kafka_cpu_s(self) -> float:
        """Return the CPU seconds that the broker has used so far."""
        return processes()[self.stack.kafka.pid or 0].cpu_s

    def log_bytes(self, job: Job) -> int:
        """Return the size on disk of a run's topics, in bytes."""
        return folder_bytes(self.stack.kafka.data, f"{job.name}*/*.log")


def commands_of(contender: Contender, job: Job) -> list[list[str]]:
    """Return the contender's commands. Installs or compiles what they need, which can take minutes."""
    job.folder.mkdir(parents=True, exist_ok=True)
    return contender.commands(job)


@contextmanager
def at_work(commands: list[list[str]], job: Job) -> Iterator[Tree]:
    """Run a contender's processes for the duration of the block. Their output goes to ``job.folder``."""
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pinned = ["taskset", "-c", f"0-{job.cores - 1}"] if job.cores else []
    running = []
    for number, command in enumerate(commands):
        with (job.folder / f"{number}.out").open("ab") as out, (job.folder / f"{number}.err").open("ab") as err:
            running.append(
                subprocess.Popen(  # noqa: S603 - a contender
                    [*pinned, *command], stdout=out, stderr=err, env=environment, cwd=ROOT, start_new_session=True
                )
            )
    tree = Tree(running)
    try:
        yield tree
    finally:
        tree.end()


@contextmanager
def tidy(arena: Arena, job: Job) -> Iterator[None]:
    """Remove the topics and the folder of a run when the block ends."""
    try:
        yield
    finally:
        topics = make_admin(arena.kafka).list_topics(timeout=10).topics
        delete_topics(arena.kafka, [topic for topic in topics if topic.startswith(job.name)])
        shutil.rmtree(job.folder, ignore_errors=True)


def delete_topics(kafka: KafkaSettings, topics: list[str]) -> None:
    """Delete topics; ignore those that do not exist."""
    # Keep the client in a variable: once it is garbage-collected, it receives no responses.
    admin = make_admin(kafka)
    for gone in admin.delete_topics(topics).values() if topics else ():
        gone.exception()


def settings_of(contender: Contender, job: Job) -> list[str]:
    """Return a contender's commands, without the parts that differ between machines or runs."""
    shown = []
    for command in contender.commands(job):
        words = ["python", *command[1:]]
        parts = ((job.folder, "FOLDER"), (ROOT, "."), (job.kafka.bootstrap_servers, "BOOTSTRAP"))
        for part, name in (*parts, *([(job.registry, "REGISTRY")] if job.registry else [])):
            words = [word.replace(str(part), name) for word in words]
        shown.append(" ".join(word.replace(job.name, "NAME") for word in words if not word.startswith("/")))
    return shown


def last_words(job: Job) -> str:
    """Return the last lines of the contender's standard error."""
    lines = [
        line for path in sorted(job.folder.glob("*.err")) for line in path.read_text(errors="replace").splitlines()
    ]
    lines = [line.strip() for line in lines if line.strip()]
    return " / ".join(line.replace(str(job.folder), "FOLDER")[:200] for line in lines[-2:]) or "no error output"
