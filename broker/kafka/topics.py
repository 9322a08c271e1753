"""The pipeline's Kafka topics: creates missing ones and checks the configuration of existing ones.

Data topics are never compacted, because compaction would lose records. They use the broker's append time: with event
times, retention would delete a replay of an old recording within minutes. All topics have the same number of
partitions, which is the number of units.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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

COPY_BYTES_MAX: Final = 32 * 1024 * 1024
"""The maximum size of a message that is repartitioned, in bytes. Kafka's default for other topics is 1 MiB."""

_COPIES: Final = {
    "max.message.bytes": COPY_BYTES_MAX,
    "message.timestamp.after.max.ms": 2**63 - 1,
    "message.timestamp.before.max.ms": 2**63 - 1,
}
"""What a repartition topic must permit, so that no copy is refused. Releases of Kafka before 3.6 lack the last two."""

_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 1.0
_POLL_S: Final = 0.1
_REPORT_S: Final = (2.0, 10.0)
"""How long to wait for the topics before the first warning is logged, and the interval between later warnings."""


class TopicError(Exception):
    """Raised if topics cannot be used as they are. The message contains one line per problem and says how to fix it."""


@dataclass(frozen=True)
class TopicSpec:
    """The configuration that a topic should have.

    A new topic is created with the ``required`` and the ``initial`` settings. An existing topic is checked only against
    the ``required`` settings. ``is_disposable``: the topic can be deleted without losing anything. ``copy_of``: the
    topic whose messages this one gets, so that a new topic retains them for at least as long. ``at_least``: settings
    that an existing topic must not fall below, if Kafka knows them. ``remedy``: what to do if
    the number of partitions is wrong, after "partitions, but must have N: ", or None for the usual.
    """

    name: str
    partitions: int
    replication_factor: int
    required: dict[str, str]
    initial: dict[str, str]
    is_disposable: bool = False
    copy_of: str | None = None
    remedy: str | None = None
    at_least: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicFacts:
    """Facts that Kafka reports about a topic. The id changes when the topic is deleted and recreated."""

    topic_id: str
    partitions: int


def data_topic_specs(settings: TopicSettings, inputs: Sequence[str] = ()) -> list[TopicSpec]:
    """Return the configurations of the input, result, late, rejected and unmatched topics and of further ``inputs``."""
    required = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
    initial = {"retention.ms": str(settings.retention // 1_000_000)}
    names = (settings.data, settings.out, settings.late, settings.rejected, settings.unmatched, *inputs)
    return [
        TopicSpec(name, settings.partitions, settings.replication_factor, required, initial)
        for name in dict.fromkeys(names)
    ]


def state_topic_spec(application: str, settings: TopicSettings) -> TopicSpec:
    """Return the configuration of the state topic, which stores an application's checkpoints and snapshots.

    The topic is compacted and has one partition per unit. A restore reads the whole log of a partition, and Kafka
    compacts only closed segments, so small segments keep a restore short.
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
            # With the broker's append time, the age of every checkpoint is measured by the same clock.
            "message.timestamp.type": "LogAppendTime",
        },
    )


def control_topic_spec(application: str, settings: TopicSettings) -> TopicSpec:
    """Return the configuration of the control topic, through which runners share and move an application's units.

    It has a single partition, so that all readers see the records in the same order. The records are needed for only
    seconds, but are kept for up to a day, space permitting, so that an operator can investigate a move. Their
    timestamps are the broker's append times, so the length of a pause is measured by a single clock.
    """
    return TopicSpec(
        f"{application}.control",
        1,
        settings.replication_factor,
        {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"},
        # At least two segments remain, enough for half an hour of heartbeats from a hundred instances.
        {"retention.ms": "86400000", "retention.bytes": "67108864", "segment.bytes": "33554432"},
        is_disposable=True,
    )


def repartition_topic_spec(name: str, source: str, settings: TopicSettings) -> TopicSpec:
    """Return the configuration of a repartition topic, which holds copies of the messages of ``source``.

    A copy has the timestamp of its original, however old or wrong that is, and may be larger because of its header.
    """
    return TopicSpec(
        name,
        settings.partitions,
        settings.replication_factor,
        {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"},
        {"retention.ms": str(settings.retention // 1_000_000)} | {name: str(value) for name, value in _COPIES.items()},
        copy_of=source,
        at_least=_COPIES,
        remedy=(
            f"if topics.partitions was changed, set it back, or give the application a new name, so that it copies "
            f"{source} again. Otherwise the topic was deleted, and Kafka has created it again by itself: start over "
            "with `joiner reset`, which deletes it"
        ),
    )


def ensure_topics(admin: AdminClient, specs: Sequence[TopicSpec]) -> dict[str, TopicFacts]:
    """Create missing topics and check existing ones. Return the `TopicFacts` of all topics, by name.

    Raises `TopicError`, which lists all problems found, and KafkaException if Kafka is unavailable.
    """
    names = [spec.name for spec in specs]
    facts = topic_facts(admin, names)
    _create(admin, [spec for spec in specs if spec.name not in facts])
    # Brokers take a while to learn about a new topic, whether this service or another one created it.
    deadline_s = time.monotonic() + _TIMEOUT_S
    while len(facts) < len(set(names)) and time.monotonic() < deadline_s:
        facts = topic_facts(admin, names)
        time.sleep(0 if len(facts) == len(set(names)) else _POLL_S)
    missing = [name for name in names if name not in facts]
    if missing:
        raise TopicError(
            f"topics have been created but are not visible yet: {', '.join(missing)}; start the service again"
        )
    faults = topic_faults(admin, specs, facts)
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
    """Wait until Kafka is available, then create and check the topics as `ensure_topics` does.

    Return the `TopicFacts` by name, or None if the service is stopped first. ``client_log`` is the logger for the Kafka
    client. Raises `TopicError`, and KafkaException or `broker.settings.SettingsError` for errors that waiting cannot
    fix.
    """
    request = _Request(kafka, specs, is_stopping, log, client_log)
    # Send the requests in a separate thread: with an unavailable broker, each takes half a minute to time out, and a
    # shutdown must not wait for that.
    thread = threading.Thread(target=request.run, name="topics", daemon=True)
    thread.start()
    report_s = time.monotonic() + _REPORT_S[0]
    while thread.is_alive() and request.failed is None and not is_stopping():
        thread.join(_POLL_S)
        request.poll()
        if time.monotonic() >= report_s:
            log.warning(
                "Kafka at %s has not answered yet, or is still creating the topics; waiting for it",
                kafka.bootstrap_servers,
            )
            report_s += _REPORT_S[1]
    if request.failed is not None:
        raise request.failed
    if request.found is not None:
        answered(client_log)
    return request.found


class _Request:
    """Calls `ensure_topics` repeatedly, until it succeeds or raises an error that waiting cannot fix."""

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

    def run(self) -> None:
        """Call `ensure_topics` repeatedly, until `found` or `failed` is set or the service is stopping."""
        try:
            config: dict[str, Any] = self._kafka.client_config() | {"error_cb": self._note_error}
            self._admin = AdminClient(config, logger=self._client_log)
            while self.found is None and self.failed is None and not self._is_stopping():
                try:
                    self.found = ensure_topics(self._admin, self._specs)
                except KafkaException as error:
                    if not is_passing(error):
                        raise
                    self._log.debug("topics cannot be checked yet: %s", error.args[0].str())
                    time.sleep(_RETRY_S)
        except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
            self.failed = error

    def poll(self) -> None:
        """Let the Kafka client call its error callback, which it does not do while it waits for a response."""
        if self._admin is not None:
            self._admin.poll(0)

    def _note_error(self, fault: KafkaError) -> None:
        if fault.code() in _REFUSALS:
            self.failed = KafkaException(fault)


_REFUSALS: Final = {KafkaError._AUTHENTICATION, KafkaError._SSL}  # noqa: SLF001 - the public names of the constants
"""Errors that waiting cannot fix: invalid credentials, or a certificate that one of the two sides does not trust."""


def is_passing(error: KafkaException) -> bool:
    """Return whether an error is transient: the same request may succeed later."""
    fault: Any = error.args[0]
    return fault.retriable() or fault.code() in {
        # As after Kafka has started, or while another broker takes over the group.
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - the public names of the constants
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
    }


def topic_facts(admin: AdminClient, names: Sequence[str], timeout_s: float = _TIMEOUT_S) -> dict[str, TopicFacts]:
    """Return the `TopicFacts` of the topics in ``names``, by name. Topics that do not exist are left out."""
    facts = {}
    for name, future in admin.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s).items():
        try:
            found = future.result()
        except KafkaException as error:
            fault: KafkaError = error.args[0]
            if fault.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            if fault.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                # Kafka does not say which one.
                raise KafkaException(KafkaError(fault.code(), f"topic {name}: {fault.str()}")) from error
            raise
        facts[name] = TopicFacts(str(found.topic_id), len(found.partitions))
    return facts


def _remedy(spec: TopicSpec, found: int) -> str:
    if spec.remedy is not None:
        return spec.remedy
    if spec.is_disposable:
        return "delete it; it will be recreated"
    return f"set topics.partitions to {found}, or delete the topic and start the service again"


def _create(admin: AdminClient, specs: Sequence[TopicSpec]) -> None:
    if not specs:
        return
    new = [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=spec.replication_factor,
            config=_config_of_new(admin, spec),
        )
        for spec in specs
    ]
    for name, future in admin.create_topics(new, operation_timeout=_TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            if is_passing(error):
                raise
            # Another service that is starting at the same time may have created the topic first.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                message = f"topic {name} cannot be created: {error.args[0].str()}"
                raise TopicError(message) from error


def _config_of_new(admin: AdminClient, spec: TopicSpec) -> dict[str, str]:
    """Return the configuration of a new topic. Copies are retained for at least as long as their originals."""
    config = {**spec.initial, **spec.required}
    if spec.copy_of is None or spec.copy_of not in topic_facts(admin, [spec.copy_of]):
        return config
    resource = ConfigResource(ResourceType.TOPIC, spec.copy_of)
    found = admin.describe_configs([resource], request_timeout=_TIMEOUT_S)[resource].result()
    there = int(found["retention.ms"].value)
    if there < 0 or there > int(config["retention.ms"]):
        config["retention.ms"] = str(there)
    return {name: value for name, value in config.items() if name in found}


def topic_faults(admin: AdminClient, specs: Sequence[TopicSpec], facts: dict[str, TopicFacts]) -> list[str]:
    """Return how existing topics differ from what they should be, each with a remedy. Raises KafkaException."""
    if not specs:
        return []
    faults = [
        f"topic {spec.name} has {facts[spec.name].partitions} partitions, but must have {spec.partitions}: "
        + _remedy(spec, facts[spec.name].partitions)
        for spec in specs
        if facts[spec.name].partitions != spec.partitions
    ]
    resources = {ConfigResource(ResourceType.TOPIC, spec.name): spec for spec in specs}
    for resource, future in admin.describe_configs(list(resources), request_timeout=_TIMEOUT_S).items():
        spec, found = resources[resource], future.result()
        faults += [
            f"topic {spec.name} has {name}={found[name].value}, but must have {value}: "
            f"kafka-configs --alter --topic {spec.name} --add-config {name}={value}"
            for name, value in spec.required.items()
            if found[name].value != value
        ]
        faults += [
            f"topic {spec.name} has {name}={found[name].value}, but must have at least {value}: "
            f"kafka-configs --alter --topic {spec.name} --add-config {name}={value}"
            for name, value in spec.at_least.items()
            if name in found and int(found[name].value) < value
        ]
    return faults
