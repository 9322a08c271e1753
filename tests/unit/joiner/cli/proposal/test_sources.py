"""What is asked of a registry, and which settings of the connections are proposed?"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.kafka.topics import TopicFacts
from broker.settings import KafkaSettings
from broker.wire.records import Unreadable
from joiner.cli.proposal import sources
from joiner.cli.proposal.samples import Source, Table, UnusableSource
from joiner.cli.proposal.sources import (
    SAMPLES_BYTES_MAX,
    SCHEMAS_MAX,
    SCHEMAS_S,
    FetchedSchemas,
    Sampling,
    describe_missing_topics,
    kafka_tables,
    read_topics,
    registry_table,
)
from joiner.mapping.framing import RegisteredSchema
from joiner.mapping.protobuf.compiling import CompilerFailed
from joiner.mapping.settings import RegistrySettings
from joiner.runtime.kafka.batches.registry_client import NoAnswerError, RegistryClient
from tests.manual_clock import ManualClock

URL = "http://registry:8081"


class Fake:
    """A registry that has even ids, and takes some time for each."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.clock = ManualClock()
        self.asked: list[int] = []
        self._takes_s = takes_s

    def fetch(self, schema_id: int) -> RegisteredSchema | None:
        self.asked.append(schema_id)
        self.clock.sleep(self._takes_s)
        return None if schema_id % 2 else RegisteredSchema("AVRO", '"int"')

    def schemas(self) -> FetchedSchemas:
        return FetchedSchemas(URL, self.fetch, self.clock)


def test_each_schema_is_asked_for_once_also_if_it_is_not_known() -> None:
    fake = Fake()
    schemas = fake.schemas()
    assert [schemas.get(one) is not None for one in (2, 3, 2, 3)] == [True, False, True, False]
    assert fake.asked == [2, 3]


def test_a_hostile_topic_does_not_ask_for_many_schemas() -> None:
    fake = Fake()
    schemas = fake.schemas()
    for schema_id in range(SCHEMAS_MAX):
        schemas.get(schema_id)
    for _ in range(2):
        with pytest.raises(Unreadable, match=f"the messages name more than {SCHEMAS_MAX}"):
            schemas.get(SCHEMAS_MAX)
    assert schemas.get(2) is not None
    assert len(fake.asked) == SCHEMAS_MAX


def test_a_slow_registry_ends_the_attempt_at_a_deadline() -> None:
    fake = Fake(takes_s=SCHEMAS_S / 4)
    schemas = fake.schemas()
    for schema_id in range(5):
        schemas.get(schema_id)
    with pytest.raises(UnusableSource, match="its answers have taken more than 30 s"):
        schemas.get(5)
    assert len(fake.asked) == 5


def test_a_registry_that_does_not_answer_is_told_with_what_to_do() -> None:
    def fetch(_schema_id: int) -> RegisteredSchema | None:
        message = "it answers with status 401: Unauthorized"
        raise NoAnswerError(message)

    with pytest.raises(UnusableSource) as error:
        FetchedSchemas(URL, fetch, ManualClock()).get(7)
    assert str(error.value) == (
        f"the schema 7, which a message names, cannot be fetched from the schema registry {URL}: it answers with "
        "status 401: Unauthorized; check --registry, or registry.url, user and password_file in the settings"
    )


def test_a_registry_that_is_down_is_told() -> None:
    settings = RegistrySettings(url="http://127.0.0.1:9")
    with pytest.raises(UnusableSource, match=r"from the schema registry http://127.0.0.1:9: .*refused"):
        FetchedSchemas("http://127.0.0.1:9", RegistryClient(settings, ManualClock()).fetch, ManualClock()).get(7)


def protobuf_of(text: str) -> FetchedSchemas:
    return FetchedSchemas(URL, lambda _: RegisteredSchema("PROTOBUF", text), ManualClock())


def test_schemas_of_protobuf_are_compiled() -> None:
    found = protobuf_of('syntax = "proto3"; message M { int32 a = 1; }').get(7)
    assert found is not None
    assert b"proto3" in found.descriptors
    assert found.mistake == ""
    wrong = protobuf_of("nonsense;").get(7)
    assert wrong is not None
    assert "Expected top-level statement" in wrong.mistake


def test_what_prevents_compiling_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_schema: RegisteredSchema) -> RegisteredSchema:
        message = "protoc cannot be run"
        raise CompilerFailed(message)

    monkeypatch.setattr(sources, "compile_schema", fail)
    with pytest.raises(UnusableSource, match=r"the schema 7, .* cannot be compiled: protoc cannot be run"):
        protobuf_of("x").get(7)
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    with pytest.raises(UnusableSource, match=r"grpcio-tools is not installed: pip install 'localstreambuffer\[proto"):
        protobuf_of("x").get(7)


def test_a_missing_topic_is_told_with_those_that_are_most_like_it() -> None:
    assert describe_missing_topics(["x"], ["b", "__consumer_offsets", "a"]) == "no such topic or file: x; topics: a, b"
    assert describe_missing_topics(["x"], []) == "no such topic or file: x; topics: none"
    many = [f"plant.{number}" for number in range(5_000)]
    told = describe_missing_topics(["plant.spindel"], [*many, "plant.spindle"])
    assert "topics: plant.spindle, " in told
    assert told.endswith(", and 4981 more")
    assert len(told) < 500


class Reader:
    """A consumer of a topic with these messages in each partition."""

    def __init__(self, messages: dict[int, list[bytes | None]]) -> None:
        self.messages = messages

    def close(self) -> None: ...


class Polled:
    """A message of Kafka."""

    def __init__(self, offset: int, value: bytes | None) -> None:
        self._offset, self._value = offset, value

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return b"k"

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 2, 7


def sampled(
    monkeypatch: pytest.MonkeyPatch,
    messages: dict[int, list[bytes | None]],
    count: int,
    partitions: int | None = None,
    hidden: Collection[int] = (),
) -> Source:
    """Return the samples of a topic. ``hidden``: the offsets at which there are no messages that can be read."""

    def read(_consumer: Any, _clock: Any, _topic: str, partition: int, start: int, end: int) -> Iterator[Polled]:
        offsets = (offset for offset in range(start, end) if offset not in hidden)
        yield from (Polled(offset, messages[partition][offset]) for offset in offsets)

    facts = {"plant": TopicFacts("id", partitions or len(messages))}
    monkeypatch.setattr(sources, "topic_facts", lambda *_: facts)
    monkeypatch.setattr(sources, "topic_faults", lambda *_: [])
    monkeypatch.setattr(sources, "make_reader", lambda *_: Reader(messages))
    monkeypatch.setattr(sources, "log_range", lambda _reader, _name, number: (0, len(messages.get(number, []))))
    monkeypatch.setattr(sources, "read_to_end", read)
    admin: Any = None
    ((source, faults),) = read_topics(KafkaSettings(), admin, ["plant"], Sampling(count), ManualClock())
    assert faults == []
    return source


def test_the_last_messages_of_each_partition_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    source = sampled(monkeypatch, {0: [b"a", b"b", b"c"], 1: [], 2: [None]}, 6)
    assert [(one.partition, one.offset, one.value) for one in source.samples] == [
        (0, 1, b"b"),
        (0, 2, b"c"),
        (2, 0, None),
    ]


def test_a_message_that_is_larger_than_the_share_of_its_partition_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, nothing would be seen of a topic with many partitions and large messages."""
    large = b"x" * (SAMPLES_BYTES_MAX // 100)
    source = sampled(monkeypatch, {number: [large, large] for number in range(200)}, 400)
    assert [one.partition for one in source.samples] == [*range(100)]
    assert sum(len(one.value or b"") for one in source.samples) <= SAMPLES_BYTES_MAX + len(large)


@pytest.mark.parametrize(("visible", "offset"), [(99, 99), (50, 50), (0, 0), (None, None)])
def test_messages_in_front_of_markers_of_transactions_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, visible: int | None, offset: int | None
) -> None:
    """Otherwise, a topic would seem to be empty."""
    hidden = {*range(100)} - {visible}
    source = sampled(monkeypatch, {0: [b"{}"] * 100, 1: []}, 2, hidden=hidden)
    assert [one.offset for one in source.samples] == ([] if offset is None else [offset])


def test_no_more_messages_are_looked_at_because_there_are_none_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    source = sampled(monkeypatch, {0: [b"{}"] * 200}, 3, hidden=range(100, 200))
    assert len(source.samples) == 3


def test_a_topic_with_more_partitions_than_a_joiner_can_have_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampled(monkeypatch, {0: [b"{}"]}, 5, partitions=1_500).partitions == 1_500


def test_default_settings_of_kafka_are_not_proposed() -> None:
    assert kafka_tables(KafkaSettings()) == []


def test_settings_of_kafka_are_proposed_without_secrets(tmp_path: Path) -> None:
    client: dict[str, Any] = {
        "security.protocol": "SASL_SSL",
        "sasl.username": "me",
        "sasl.password": "s3cret",
        "ssl.key.password": "s3cret",
        "ssl.key.pem": "s3cret",
        "ssl.keystore.password": "s3cret",
        "sasl.oauthbearer.client.secret": "s3cret",
        "sasl.oauthbearer.config": "token=s3cret",
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.key.location": "/etc/key.pem",
        "socket.keepalive.enable": True,
    }
    kafka = KafkaSettings(bootstrap_servers="kafka:9093", client=client, sasl_password_file=tmp_path / "password")
    found = kafka_tables(kafka)
    assert found[0] == Table(
        "[kafka]", {"bootstrap_servers": "kafka:9093", "sasl_password_file": f"{tmp_path}/password"}
    )
    assert found[1].header == "[kafka.client]"
    assert found[1].values == {
        "security.protocol": "SASL_SSL",
        "sasl.username": "me",
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.key.location": "/etc/key.pem",
        "socket.keepalive.enable": True,
    }
    assert len(found[1].comments) == 6
    assert "s3cret" not in str(found)
    assert "(kafka.sasl_password_file)" in "".join(found[1].comments)


def test_the_settings_of_the_registry_are_proposed_without_the_password() -> None:
    given = {"url": URL, "user": "me", "password": "s3cret", "timeout": "500ms", "unknown_schema": "reject"}
    found = registry_table(RegistrySettings.model_validate(given))
    assert found.values == {"url": URL, "user": "me", "timeout": "500ms", "unknown_schema": "reject"}
    assert "LSB_REGISTRY__PASSWORD" in found.comments[0]
    assert "s3cret" not in str(found)
    again = RegistrySettings.model_validate(dict(found.values))
    assert again == RegistrySettings.model_validate({**given, "password": None})
    assert registry_table(RegistrySettings(url=URL)) == Table("[registry]", {"url": URL}, [])


def test_files_of_the_registry_are_proposed(tmp_path: Path) -> None:
    given = {"url": URL, "user": "me", "password_file": "/secret", "ca_file": str(tmp_path / "ca.pem")}
    assert registry_table(RegistrySettings.model_validate(given)).values == given
