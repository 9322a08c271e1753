"""A replica is added to a running application and taken away again, in exactly the steps of docs/replicas.md.

Meanwhile, data flows, and readers read. Nothing is missing or doubled, neither in the topics of replica 0 nor in those
into which the replicas are merged.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import TopicPartition

from broker.kafka.replicas import merged_topic
from broker.stack.ports import choose_port
from broker.wire.records import is_watermark
from broker.wire.start_records import read_start
from joiner.runtime.settings import replica_settings
from tests.integration.joiner_application import ALIGNS, Application, application, flowing, found_of
from tests.integration.joiner_process import Joiner
from tests.integration.merging import is_complete, is_merged
from tests.integration.services import DEADLINE_S, ROOT, read_topic, topic_reader, wait_until

SEED: Final = 232
PATIENCE_S: Final = 180.0
"""For steps that need several processes to start or to take over, while other tests use the cores."""

ONE_REPLICA: Final = 'snapshot_interval = "700ms"'
TWO_REPLICAS: Final = f"{ONE_REPLICA}\nreplicas = 2"


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path, application=ONE_REPLICA, aligns=ALIGNS)


class Steps:
    """The numbered steps in a section of the page."""

    def __init__(self, section: str) -> None:
        page = (ROOT / "docs" / "replicas.md").read_text()
        (text,) = re.findall(rf"(?ms)^## {re.escape(section)}$(.*?)(?=^## |\Z)", page)
        self._left = [" ".join(step.split()) for step in re.findall(r"(?ms)^\d+\. (.*?)(?=^\d+\. |^$|\Z)", text)]

    def take(self, text: str) -> None:
        """Check that the next step says this."""
        assert self._left, f"the page has no further step: {text}"
        assert text in self._left.pop(0)

    def end(self) -> None:
        """Check that all steps were taken."""
        assert self._left == []


@dataclass
class Reader:
    """A read-committed consumer of a result topic, from its beginning."""

    app: Application
    topic: str
    ids: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read for the duration of the block."""
        stop = threading.Event()
        thread = threading.Thread(target=self._read, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _read(self, stop: threading.Event) -> None:
        with closing(topic_reader(self.app.bootstrap, f"{self.topic}.steps")) as consumer:
            consumer.assign([TopicPartition(self.topic, unit, 0) for unit in range(self.app.partitions)])
            while not stop.is_set():
                for message in consumer.consume(1_000, 0.2):
                    if message.error() is None:
                        self.ids.update(ids_in([message.value() or b""]))

    def wait_for_more(self, count: int = 100) -> None:
        """Wait for further results."""
        wanted = self.ids.total() + count
        wait_until(lambda: self.ids.total() >= wanted, f"{count} further results are in {self.topic}", PATIENCE_S)


def ids_in(values: list[bytes]) -> list[str]:
    """Return the ids of the results among messages."""
    return [json.loads(value)["id"] for value in values if read_start(value) is None and not is_watermark(value)]


def ids_of(app: Application, topic: str) -> Counter[str]:
    return Counter(ids_in([stored.value for stored in read_topic(app.bootstrap, topic, app.partitions)]))


class Processes:
    """The processes of the application."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.port = choose_port()
        self.joiners: dict[str, Joiner] = {}
        self.merger: Joiner | None = None

    def run(self, instance: str, replica: int = 0) -> None:
        """Start an instance, and wait until it serves units."""
        self.joiners[instance] = self.app.start("--replica", str(replica), instance=instance)
        self.joiners[instance].wait_for(r"unit \d+: claimed", PATIENCE_S)

    def restart_one_after_the_other(self, *instances: str) -> None:
        """Stop each instance, and start it with the settings that there are now."""
        for instance in instances:
            assert self.joiners[instance].stop() == 0
            self.run(instance)

    def merge(self) -> None:
        """Start to merge, or stop that and start it with the settings that there are now."""
        assert self.merger is None or self.merger.stop() == 0
        self.merger = self.app.start(instance="merge", command="merge", LSB_METRICS__LISTEN=str(self.port))
        self.merger.wait_for("merging . replicas", PATIENCE_S)

    def wait_until_complete(self, *replicas: int) -> None:
        """Wait until the metrics show that replicas are complete in all partitions."""
        settings, ports = self.app.settings(), {"merge": self.port}
        for replica in replicas:
            what = f"replica {replica} is complete"
            wait_until(lambda replica=replica: is_complete(settings, ports, replica), what, PATIENCE_S)  # type: ignore[misc] # a default

    def stop(self) -> list[int]:
        """Stop all processes. Return their statuses."""
        assert self.merger is not None
        return [joiner.stop() for joiner in (*self.joiners.values(), self.merger)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_replica_is_added_and_taken_away_while_data_flows(app: Application) -> None:
    plain, merged = Reader(app, app.topic("out")), Reader(app, merged_topic(app.topic("out")))
    processes = Processes(app)
    steps = Steps("From one replica to two, and back")
    with ExitStack() as readers:
        with flowing(app, SEED, with_unreadable=True):
            for instance in ("one", "two"):
                processes.run(instance)
            readers.enter_context(plain.reading())
            plain.wait_for_more()
            add_replica(processes, steps, plain)
            readers.enter_context(merged.reading())
            merged.wait_for_more()
            for instance in ("one", "two"):
                processes.joiners[instance].kill()
            merged.wait_for_more()
            for instance in ("one", "two"):
                processes.run(instance)
            plain.wait_for_more()
            take_replica_away(processes, steps)
            steps.end()
            plain.wait_for_more()
            merged.wait_for_more()
        app.wait_until_through(PATIENCE_S)
        wait_until(lambda: is_merged(app.settings()), "everything is merged", PATIENCE_S)
        written = ids_of(app, plain.topic)
        assert set(written.values()) == {1}
        assert ids_of(app, merged.topic) == written
        for reader in (plain, merged):
            wait_until(lambda ids=reader.ids: ids == written, f"{reader.topic} is read, each result once", PATIENCE_S)  # type: ignore[misc] # a default
    for is_merged_output in (False, True):
        findings = app.verify(merged=is_merged_output)
        assert found_of(findings, "aligned rows", "table") > 0
        assert found_of(findings, "rejected records", "") > 0
    assert set(processes.stop()) == {0}
    assert not any("Traceback" in joiner.text() for joiner in app.started)


def add_replica(processes: Processes, steps: Steps, plain: Reader) -> None:
    """Go from one replica to two."""
    app = processes.app
    steps.take("Set `application.replicas = 2`, and restart the instances of replica 0 one after the other.")
    app.application = TWO_REPLICAS
    processes.restart_one_after_the_other("one", "two")
    plain.wait_for_more()
    steps.take("Start `joiner merge`.")
    processes.merge()
    steps.take("Start replica 1 on other hosts.")
    processes.run("three", replica=1)
    steps.take("Wait until `lsb_joiner_merge_complete` shows every partition for both replicas.")
    processes.wait_until_complete(0, 1)
    steps.take("Let the readers go over to the merged topics.")


def take_replica_away(processes: Processes, steps: Steps) -> None:
    """Go back to one replica."""
    app = processes.app
    steps.take("Wait until `lsb_joiner_merge_complete` shows every partition for replica 0.")
    processes.wait_until_complete(0)
    steps.take("Set `application.replicas = 1`, and restart all processes of `joiner merge`.")
    removed = replica_settings(app.settings(), 1)
    app.application = ONE_REPLICA
    processes.merge()
    steps.take("Stop replica 1.")
    assert processes.joiners.pop("three").stop() == 0
    steps.take("Restart the instances of replica 0 one after the other.")
    processes.restart_one_after_the_other("one", "two")
    steps.take("Delete the topics of replica 1")
    names = [*removed.output_topics.values(), removed.state_topic, removed.control_topic]
    for future in app.admin().delete_topics(names, operation_timeout=DEADLINE_S).values():
        future.result()
    for future in app.admin().delete_consumer_groups([removed.application.name]).values():
        future.result()
    nothing_is_left(app, removed.application.name)
    steps.take("Let the readers go over to `machine.out`")


def nothing_is_left(app: Application, replica: str) -> None:
    """Check that a replica that is added again would begin with the state of replica 0, as the page says."""
    app.application = TWO_REPLICAS
    said = app.command("reset", "--replica", "1")
    app.application = ONE_REPLICA
    assert said.stdout == f"application {replica!r} has never run: nothing to reset\n", said.stderr
