"""Are schemas fetched once, kept within limits, and never guessed?"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from joiner.mapping.avro.schema import parse_schema
from joiner.mapping.framing import SCHEMA_LENGTH_MAX, RegisteredSchema, SchemaTable
from joiner.mapping.protobuf.compiling import CompilerFailed
from joiner.mapping.settings import RegistrySettings
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.batches import registry
from joiner.runtime.kafka.batches.registry import SchemaStore, SchemaUnavailable, schemas_of
from joiner.runtime.kafka.batches.registry_client import (
    ANSWER_BYTES_MAX,
    NoAnswerError,
    RegistryClient,
    UnreachableError,
)
from joiner.runtime.ownership.retry_policy import cause_of
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings

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

    store = SchemaStore(STOP, lambda _: PROTOBUF, ManualClock(), compiled)
    with pytest.raises(SchemaUnavailable, match=r"the schema 2, .* cannot be compiled: protoc has ended") as error:
        store.get(2)
    assert cause_of(error.value).is_transient
    is_broken = False
    assert store.get(2) == PROTOBUF


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


class Answer(NamedTuple):
    """An answer of a registry: its status and its content."""

    status: int
    content: Any


@contextmanager
def served(
    answers: dict[str, Answer], tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Serve answers by path. Yield the URL, and a list to which each request's path and credentials are added."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append((path, self.headers.get("Authorization") or ""))
            answer = answers.get(path, Answer(404, {"error_code": 40403, "message": "not found"}))
            content = answer.content if isinstance(answer.content, bytes) else json.dumps(answer.content).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def client_of(**settings: Any) -> RegistryClient:
    return RegistryClient(RegistrySettings.model_validate(settings), SystemClock())


def test_a_schema_comes_with_those_that_it_refers_to() -> None:
    inner = {"name": "Inner", "subject": "inner", "version": 3}
    outer = {"name": "Outer", "subject": "outer", "version": 1}
    versions = {
        "/subjects/inner/versions/3": Answer(200, {"subject": "inner", "id": 2, "version": 3, "schema": "I"}),
        "/subjects/outer/versions/1": Answer(
            200, {"subject": "outer", "id": 3, "version": 1, "schema": "O", "references": [inner]}
        ),
    }
    whole = Answer(200, {"schema": "W", "references": [outer, inner]})
    with served({"/schemas/ids/7": whole, **versions}) as (url, _):
        assert client_of(url=url).fetch(7) == RegisteredSchema("AVRO", "W", ("I", "O"), ("Inner", "Outer"))


def test_a_protobuf_schema_comes_with_the_names_of_its_imports() -> None:
    reference = {"name": "in/b.proto", "subject": "b", "version": 1}
    answers = {
        "/schemas/ids/7": Answer(200, {"schemaType": "PROTOBUF", "schema": "W", "references": [reference]}),
        "/subjects/b/versions/1": Answer(200, {"schema": "B", "schemaType": "PROTOBUF"}),
    }
    with served(answers) as (url, _):
        assert client_of(url=url).fetch(7) == RegisteredSchema("PROTOBUF", "W", ("B",), ("in/b.proto",))


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


def test_the_type_of_a_schema_is_known() -> None:
    with served({"/schemas/ids/7": Answer(200, {"schema": "{}", "schemaType": "JSON"})}) as (url, _):
        # Its text is not kept, because nothing uses it.
        assert client_of(url=url).fetch(7) == RegisteredSchema("JSON", "")


def test_of_two_references_with_a_name_the_first_counts() -> None:
    def reference(name: str, version: int) -> dict[str, Any]:
        return {"name": name, "subject": f"of/{name}", "version": version}

    versions = {
        "/subjects/of%2FA/versions/1": Answer(200, {"schema": "A1"}),
        "/subjects/of%2FA/versions/2": Answer(200, {"schema": "A2", "references": [reference("A", 2)]}),
        "/subjects/of%2FB/versions/1": Answer(200, {"schema": "B", "references": [reference("A", 1)]}),
    }
    for references, wanted in (
        ([reference("A", 2), reference("B", 1)], ("A2", "B")),
        ([reference("B", 1), reference("A", 2)], ("A1", "B")),
    ):
        whole = Answer(200, {"schema": "W", "references": references})
        with served({"/schemas/ids/7": whole, **versions}) as (url, _):
            assert client_of(url=url).fetch(7) == RegisteredSchema("AVRO", "W", wanted, ("A", "B"))


def test_a_schema_refers_to_a_limited_number_of_others() -> None:
    answers = {
        f"/subjects/s{n}/versions/1": Answer(
            200, {"schema": "S", "references": [{"name": f"s{n + 1}", "subject": f"s{n + 1}", "version": 1}]}
        )
        for n in range(200)
    }
    answers["/schemas/ids/7"] = answers["/subjects/s0/versions/1"]
    with served(answers) as (url, _), pytest.raises(NoAnswerError, match="more than 100 others"):
        client_of(url=url).fetch(7)


def test_what_is_too_long_to_be_used_is_not_kept() -> None:
    reference = {"name": "s", "subject": "s", "version": 1}
    answers = {
        "/schemas/ids/7": Answer(200, {"schema": "W" * 600_000, "references": [reference]}),
        "/subjects/s/versions/1": Answer(200, {"schema": "S" * 600_000}),
    }
    with served(answers) as (url, _):
        found = client_of(url=url).fetch(7)
    assert found is not None
    with pytest.raises(ValueError, match="more than 1048576 characters"):
        parse_schema(found.text, found.references)
    assert len(found.text) + sum(map(len, found.references)) == SCHEMA_LENGTH_MAX + 1


@pytest.mark.parametrize(
    "begin", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]
)
def test_an_answer_that_trickles_ends_at_the_deadline(begin: bytes) -> None:
    is_over = threading.Event()

    def trickle(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(begin)
            while not is_over.wait(0.02):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle, args=(server,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            client = client_of(url=url, timeout="300ms")
            begun_s = time.monotonic()
            with pytest.raises(UnreachableError, match=r"does not answer within 0\.3 s"):
                client.fetch(7)
            assert time.monotonic() - begun_s < 5
        finally:
            is_over.set()
            thread.join()


def test_a_password_needs_a_user() -> None:
    with pytest.raises(ValueError, match="a password is set without a user"):
        RegistrySettings.model_validate({"url": "http://registry", "password": "x"})


def test_an_id_that_the_registry_does_not_know_is_told_from_a_wrong_address() -> None:
    with served({"/schemas/ids/8": Answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"})}) as (url, _):
        client = client_of(url=url)
        assert client.fetch(7) is None
        with pytest.raises(NoAnswerError, match="status 404"):
            client.fetch(8)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(401, {"error_code": 401, "message": "Unauthorized"}), "status 401"),
        (Answer(500, b"broken"), "500"),
        (Answer(302, b""), "302"),
        (Answer(200, b"<html>"), "not a JSON object"),
        (Answer(200, b"[" * 100_000), "not a JSON object"),
        (Answer(200, ["schema"]), "not a JSON object"),
        (Answer(200, {}), "no schema"),
        (Answer(200, {"schema": None}), "no schema"),
        (Answer(200, {"schema": {"type": "int"}}), "no schema"),
        (Answer(200, {"schema": ""}), "no schema"),
        (Answer(200, {"schema": "W", "schemaType": 3}), "schemaType"),
        (Answer(200, {"schema": "W", "references": {"name": "A"}}), "references that are not a list"),
        (Answer(200, {"schema": "W", "references": [{"name": "A", "subject": "s"}]}), "without a name"),
        (Answer(200, {"schema": "W", "references": [{"name": "A", "subject": "s", "version": 1}]}), "does not know"),
        (Answer(200, {"schema": "W" * ANSWER_BYTES_MAX}), "more than 2097152 bytes"),
    ],
)
def test_any_other_answer_is_none(answer: Answer, reason: str) -> None:
    with served({"/schemas/ids/7": answer}) as (url, _), pytest.raises(NoAnswerError, match=reason):
        client_of(url=url).fetch(7)


def test_a_registry_that_is_down_does_not_answer() -> None:
    with served({}) as (url, _):
        pass
    with pytest.raises(UnreachableError, match="refused"):
        client_of(url=url).fetch(7)


def test_the_user_signs_in_with_the_password_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("se:cret\n")
    with served({"/schemas/ids/7": Answer(200, {"schema": "W"})}) as (url, asked):
        client_of(url=url, user="me", password_file=file).fetch(7)
    assert asked == [("/schemas/ids/7", "Basic bWU6c2U6Y3JldA==")]
