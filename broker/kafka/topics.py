"""The Kafka topics of the pipeline: how they must be set up, creating them, checking those that exist.

Data topics are never compacted (compaction would lose records) and carry the broker's append time (a replay
of an old recording stamped with its event times would be emptied by retention within minutes). The number of
partitions is the number of units, the same for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from broker.kafka.client_log import answered

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from broker.settings import KafkaSettings, TopicSettings

_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 1.0
_LOOK_S: Final = 0.1
_REPORT_S: Final = (2.0, 10.0)
"""When it is first told that Kafka is waited for, and how often from then on."""


class TopicError(Exception):
    """Topics that cannot be used as they are; ``str`` lists every fault with the way out, a line each."""


@dataclass(frozen=True)
class TopicSpec:
    """How a topic must be: ``required`` settings are checked where the topic exists, ``initial`` ones are not.

    ``is_disposable``: nothing is lost where it is deleted.
    """

    name: str
    partitions: int
    replication_factor: int
    required: dict[str, str]
    initial: dict[str, str]
    is_disposable: bool = False


@dataclass(frozen=True)
class TopicFacts:
    """What Kafka says of a topic: its id changes when it is deleted and made anew."""

    topic_id: str
    partitions: int


def data_topic_specs(settings: TopicSettings, inputs: Sequence[str] = ()) -> list[TopicSpec]:
    """The topics that carry records: input, results, late, rejected, unmatched, and other ``inputs``."""
    required = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
    initial = {"retention.ms": str(settings.retention // 1_000_000)}
    names = (settings.data, settings.out, settings.late, settings.rejected, settings.unmatched, *inputs)
    return [
        TopicSpec(name, settings.partitions, settings.replication_factor, required, initial)
        for name in dict.fromkeys(names)
    ]


def state_topic_spec(application: str, settings: TopicSettings) -> TopicSpec:
    """The compacted topic of an application's checkpoints and snapshots, a partition for each unit.

    Only closed segments are compacted, and recovery reads what is there: small segments keep both small.
    """
    return TopicSpec(
        f"{application}.state",
        settings.partitions,
        settings.replication_factor,
        {"cleanup.policy": "compact"},
        {
            "min.cleanable.dirty.ratio": "0.1",
            "segment.bytes": str(16 * 1024 * 1024),
            "segment.ms": "600000",
            # So that how old a checkpoint is, is told by one clock.
            "message.timestamp.type": "LogAppendTime",
        },
    )


def control_topic_spec(application: str, settings: TopicSettings) -> TopicSpec:
    """The topic over which an application's units are moved: one partition, so that all see one order.

    What is written there matters for seconds; a day is for people who look at what happened. The broker's append time
    is the one clock by which a pause is told.
    """
    return TopicSpec(
        f"{application}.control",
        1,
        settings.replication_factor,
        {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"},
        {"retention.ms": "86400000"},
        is_disposable=True,
    )


def ensure_topics(admin: AdminClient, specs: Sequence[TopicSpec]) -> dict[str, TopicFacts]:
    """Create what is missing, check what exists, return the facts by name.

    Raises `TopicError` with all faults together, KafkaException where Kafka cannot be reached.
    """
    names = [spec.name for spec in specs]
    facts = topic_facts(admin, names)
    _create(admin, [spec for spec in specs if spec.name not in facts])
    # What was just made, perhaps by another service with other settings, is not known to every broker at once.
    deadline_s = time.monotonic() + _TIMEOUT_S
    while len(facts) < len(set(names)) and time.monotonic() < deadline_s:
        facts = topic_facts(admin, names)
        time.sleep(0 if len(facts) == len(set(names)) else _LOOK_S)
    absent = [name for name in names if name not in facts]
    if absent:
        raise TopicError(f"created and not seen since: {', '.join(absent)}; start again")
    faults = _faults(admin, specs, facts)
    if faults:
        raise TopicError("\n".join(faults))
    return facts


def wait_for_topics(
    kafka: KafkaSettings,
    specs: Sequence[TopicSpec],
    is_stopping: Callable[[], bool],
    log: logging.Logger,
    client_log: logging.Logger,
) -> dict[str, TopicFacts] | None:
    """As `ensure_topics`, however long Kafka is away; None where a stop came first.

    ``client_log`` is given the library's own lines. Raises `TopicError`, and KafkaException or
    `broker.settings.SettingsError` for what waiting cannot mend.
    """
    question = _Question(kafka, specs, is_stopping, log, client_log)
    # In a thread, because a question to an absent Kafka takes half a minute, and a stop must not wait for it.
    asking = threading.Thread(target=question.ask, name="topics", daemon=True)
    asking.start()
    report_s = time.monotonic() + _REPORT_S[0]
    while asking.is_alive() and question.failed is None and not is_stopping():
        asking.join(_LOOK_S)
        question.listen()
        if time.monotonic() >= report_s:
            log.warning("Kafka at %s does not answer yet, waiting for it", kafka.bootstrap_servers)
            report_s += _REPORT_S[1]
    if question.failed is not None:
        raise question.failed
    if question.found is not None:
        answered(client_log)
    return question.found


class _Question:
    """Asks for topics until they are there, or something is wrong that waiting cannot mend."""

    def __init__(
        self,
        kafka: KafkaSettings,
        specs: Sequence[TopicSpec],
        is_stopping: Callable[[], bool],
        log: logging.Logger,
        client_log: logging.Logger,
    ) -> None:
        self.found: dict[str, TopicFacts] | None = None
        self.failed: Exception | None = None
        self._kafka = kafka
        self._specs = specs
        self._is_stopping = is_stopping
        self._log = log
        self._client_log = client_log
        self._admin: AdminClient | None = None

    def ask(self) -> None:
        """Until `found` or `failed` is there."""
        try:
            config: dict[str, Any] = self._kafka.client_config() | {"error_cb": self._note}
            self._admin = AdminClient(config, logger=self._client_log)
            while self.found is None and self.failed is None and not self._is_stopping():
                try:
                    self.found = ensure_topics(self._admin, self._specs)
                except KafkaException as error:
                    if not is_passing(error):
                        raise
                    self._log.debug("topics cannot be checked yet: %s", error.args[0].str())
                    time.sleep(_RETRY_S)
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            self.failed = error

    def listen(self) -> None:
        """Let the library tell of its connections, which a call that waits for an answer does not."""
        if self._admin is not None:
            self._admin.poll(0)

    def _note(self, fault: KafkaError) -> None:
        if fault.code() in _REFUSALS:
            self.failed = KafkaException(fault)


_REFUSALS: Final = {KafkaError._AUTHENTICATION, KafkaError._SSL}  # noqa: SLF001 - the public names of the constants
"""A wrong login, and a certificate that one of the two does not trust: no waiting mends that."""


def is_passing(error: KafkaException) -> bool:
    """Whether Kafka was not reached, so that the same request may succeed later."""
    fault: Any = error.args[0]
    return fault.retriable() or fault.code() in {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - the public names of the constants
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
    }


def topic_facts(admin: AdminClient, names: Sequence[str]) -> dict[str, TopicFacts]:
    """The facts of those of ``names`` that exist."""
    facts = {}
    for name, future in admin.describe_topics(TopicCollection(list(names)), request_timeout=_TIMEOUT_S).items():
        try:
            found = future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            raise
        facts[name] = TopicFacts(str(found.topic_id), len(found.partitions))
    return facts


def _way_out(spec: TopicSpec, found: int) -> str:
    if spec.is_disposable:
        return "delete it, it is made anew"
    return f"set topics.partitions to {found}, or delete the topic and start anew"


def _create(admin: AdminClient, specs: Sequence[TopicSpec]) -> None:
    if not specs:
        return
    new = [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=spec.replication_factor,
            config={**spec.initial, **spec.required},
        )
        for spec in specs
    ]
    for name, future in admin.create_topics(new, operation_timeout=_TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            if is_passing(error):
                raise
            # Another service that starts at the same time may have been quicker.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                message = f"topic {name} cannot be created: {error.args[0].str()}"
                raise TopicError(message) from error


def _faults(admin: AdminClient, specs: Sequence[TopicSpec], facts: dict[str, TopicFacts]) -> list[str]:
    if not specs:
        return []
    faults = [
        f"topic {spec.name} has {facts[spec.name].partitions} partitions and the settings say {spec.partitions}: "
        + _way_out(spec, facts[spec.name].partitions)
        for spec in specs
        if facts[spec.name].partitions != spec.partitions
    ]
    resources = {ConfigResource(ResourceType.TOPIC, spec.name): spec for spec in specs}
    for resource, future in admin.describe_configs(list(resources), request_timeout=_TIMEOUT_S).items():
        spec, found = resources[resource], future.result()
        faults += [
            f"topic {spec.name} has {name}={found[name].value} and needs {value}: "
            f"kafka-configs --alter --topic {spec.name} --add-config {name}={value}"
            for name, value in spec.required.items()
            if found[name].value != value
        ]
    return faults
