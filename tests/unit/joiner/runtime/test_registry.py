"""Are schemas fetched once, kept within limits, and never guessed?"""

from __future__ import annotations

from typing import Any

import pytest

from joiner.mapping.framing import RegisteredSchema, SchemaTable
from joiner.mapping.protobuf.compiling import CompilerFailed
from joiner.mapping.settings import RegistrySettings
from joiner.runtime.kafka.batches import registry
from joiner.runtime.kafka.batches.registry import SchemaStore, SchemaUnavailable, schemas_of
from joiner.runtime.kafka.batches.registry_client import NoAnswerError, UnreachableError
from joiner.runtime.ownership.retry_policy import cause_of
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.test_registry_client import Answer, served

SPEED: dict[str, Any] = {"name": "speed", "topic": "plant", "key": "$.id", "time": "$.ts", "value": "$.rpm"}
STOP = RegistrySettings(url="http://registry")
REJECT = RegistrySettings(url="http://registry", unknown_schema="reject")


class Fake:
    """A registry that has even ids below 1,000, and answers only while it is up."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.is_up = True

    def fetch(self, schema_id: int) -> RegisteredSchema | None:
        self.asked.append(schema_id)
        if not self.is_up:
            raise UnreachableError("it is down")
        return None if schema_id % 2 else RegisteredSchema("AVRO", f'"{schema_id}"')


def test_a_schema_is_fetched_once() -> None:
    fake = Fake()
    store = SchemaStore(STOP, fake.fetch, ManualClock())
    assert [store.get(2), store.get(2)] == [RegisteredSchema("AVRO", '"2"')] * 2
    assert fake.asked == [2]


def test_a_schema_that_was_fetched_is_known_while_the_registry_is_down() -> None:
    fake = Fake()
    store = SchemaStore(STOP, fake.fetch, ManualClock())
    store.get(2)
    fake.is_up = False
    assert store.get(2) is not None


def test_a_registry_that_does_not_answer_stops_the_unit_for_a_while() -> None:
    fake, clock = Fake(), ManualClock()
    store = SchemaStore(STOP, fake.fetch, clock)
    fake.is_up = False
    with pytest.raises(
        SchemaUnavailable, match=r"the schema 2, .* from the schema registry http://registry: it is down"
    ) as error:
        store.get(2)
    assert cause_of(error.value).is_transient
    # The other units do not wait for the same registry.
    with pytest.raises(SchemaUnavailable, match="the schema 4"):
        store.get(4)
    assert fake.asked == [2]
    fake.is_up = True
    clock.sleep(1.1)
    assert store.get(2) is not None


def test_the_trouble_with_one_schema_does_not_concern_others() -> None:
    def fetch(schema_id: int) -> RegisteredSchema:
        if schema_id == 7:
            raise NoAnswerError("a schema that it refers to is gone")
        return RegisteredSchema("AVRO", '"int"')

    store = SchemaStore(STOP, fetch, ManualClock())
    with pytest.raises(SchemaUnavailable, match=r"the schema 7, .*: a schema that it refers to is gone"):
        store.get(7)
    assert store.get(8) is not None


def test_an_unknown_schema_stops_the_unit_until_it_is_registered() -> None:
    fake = Fake()
    store = SchemaStore(STOP, fake.fetch, ManualClock())
    for _ in range(2):
        with pytest.raises(SchemaUnavailable, match="no schema with the id 3") as error:
            store.get(3)
    assert fake.asked == [3, 3]
    assert cause_of(error.value).is_transient


def test_an_unknown_schema_is_asked_for_once_if_its_messages_are_rejected() -> None:
    fake = Fake()
    store = SchemaStore(REJECT, fake.fetch, ManualClock())
    assert [store.get(3), store.get(3)] == [None, None]
    assert fake.asked == [3]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SCHEMAS_MAX", 3)
    monkeypatch.setattr(registry, "UNKNOWN_MAX", 2)
    fake = Fake()
    store = SchemaStore(REJECT, fake.fetch, ManualClock())
    for schema_id in (2, 4, 6, 8, 2, 1, 3, 5, 1):
        store.get(schema_id)
    assert fake.asked == [2, 4, 6, 8, 2, 1, 3, 5, 1]
    for schema_id in (6, 8, 2, 5, 1):
        store.get(schema_id)
    assert len(fake.asked) == 9


def test_the_size_of_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CHARACTERS_MAX", 7)
    fake = Fake()
    store = SchemaStore(STOP, fake.fetch, ManualClock())
    for schema_id in (2, 4, 6, 4, 2):
        store.get(schema_id)
    assert fake.asked == [2, 4, 6, 2]


def test_streams_without_schemas_need_no_registry() -> None:
    assert isinstance(schemas_of(make_settings(stream=[SPEED])), SchemaTable)
    assert isinstance(schemas_of(make_settings(stream=[SPEED | {"format": "json_schema"}])), SchemaTable)


def test_all_units_of_a_process_share_what_was_fetched() -> None:
    settings = make_settings(stream=[SPEED | {"format": "avro"}], registry={"url": "http://registry"})
    assert schemas_of(settings) is schemas_of(settings.model_copy())


PROTOBUF = RegisteredSchema("PROTOBUF", "message A {}", ("message B {}",), ("b.proto",))


def test_a_protobuf_schema_is_compiled_once_if_a_stream_needs_it() -> None:
    seen: list[RegisteredSchema] = []
    done = RegisteredSchema("PROTOBUF", "", descriptors=b"x")

    def compiled(schema: RegisteredSchema) -> RegisteredSchema:
        seen.append(schema)
        return done

    store = SchemaStore(STOP, lambda _: PROTOBUF, ManualClock(), compiled)
    assert [store.get(2), store.get(2)] == [done, done]
    assert seen == [PROTOBUF]
    # Otherwise, its kind is enough.
    assert SchemaStore(STOP, lambda _: PROTOBUF, ManualClock()).get(2) == RegisteredSchema("PROTOBUF", "")


def test_a_compiler_that_fails_stops_the_unit_and_is_tried_again() -> None:
    is_broken = True

    def compiled(schema: RegisteredSchema) -> RegisteredSchema:
        if is_broken:
            raise CompilerFailed("protoc has ended with status -9")
        return schema

    clock = ManualClock()
    store = SchemaStore(STOP, lambda _: PROTOBUF, clock, compiled)
    with pytest.raises(SchemaUnavailable, match=r"the schema 2, .* cannot be compiled: protoc has ended") as error:
        store.get(2)
    assert cause_of(error.value).is_transient
    is_broken = False
    clock.sleep(1.1)
    assert store.get(2) == PROTOBUF


def test_a_schema_that_takes_long_to_fail_does_not_keep_the_other_units_waiting() -> None:
    clock = ManualClock()
    compiled_at: list[float] = []

    def compiled(schema: RegisteredSchema) -> RegisteredSchema:
        compiled_at.append(clock.monotonic_s())
        clock.sleep(30)
        raise CompilerFailed("protoc has not compiled it within 30 s")

    begun_s = clock.monotonic_s()
    fetched: list[int] = []

    def fetch(schema_id: int) -> RegisteredSchema:
        fetched.append(schema_id)
        return PROTOBUF if schema_id == 2 else RegisteredSchema("AVRO", '"int"')

    store = SchemaStore(STOP, fetch, clock, compiled)
    for _ in range(1_000):
        with pytest.raises(SchemaUnavailable, match=r"the schema 2, .* cannot be compiled: protoc has not compiled it"):
            store.get(2)
        clock.sleep(1)
    # A tenth of the time.
    assert [at - begun_s for at in compiled_at] == [0, 330, 660, 990]
    assert store.get(4) is not None
    assert fetched == [2, 2, 2, 2, 4]


def test_the_names_of_what_a_schema_refers_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CHARACTERS_MAX", 25)
    fetched: list[int] = []

    def fetch(schema_id: int) -> RegisteredSchema:
        fetched.append(schema_id)
        return RegisteredSchema("AVRO", '"int"', ('"int"',), ("name",))

    store = SchemaStore(STOP, fetch, ManualClock())
    for schema_id in (2, 4, 4, 2):
        store.get(schema_id)
    assert fetched == [2, 4, 2]


def test_the_size_of_compiled_schemas_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CHARACTERS_MAX", 7)
    fetched: list[int] = []

    def fetch(schema_id: int) -> RegisteredSchema:
        fetched.append(schema_id)
        return PROTOBUF

    store = SchemaStore(STOP, fetch, ManualClock(), lambda _: RegisteredSchema("PROTOBUF", "", descriptors=b"x" * 5))
    for schema_id in (2, 4, 4, 2):
        store.get(schema_id)
    assert fetched == [2, 4, 2]


def test_schemas_are_compiled_for_applications_with_streams_of_protobuf() -> None:
    whole = Answer(200, {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3"; message M {}'})
    with served({"/schemas/ids/7": whole}) as (url, _):
        found = [
            schemas_of(make_settings(stream=[SPEED | {"format": name}], registry={"url": url})).get(7)
            for name in ("avro", "protobuf")
        ]
    assert [one is not None and (one.kind, one.mistake, bool(one.descriptors)) for one in found] == [
        ("PROTOBUF", "", False),
        ("PROTOBUF", "", True),
    ]
