"""Are schemas fetched once, kept within limits, and never guessed?"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.settings import SettingsError
from joiner.mapping.framing import RegisteredSchema, SchemaTable
from joiner.mapping.settings import RegistrySettings
from joiner.runtime.kafka.batches import registry
from joiner.runtime.kafka.batches.registry import (
    NoAnswerError,
    RegistryClient,
    SchemaStore,
    SchemaUnavailable,
    schemas_of,
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
            raise NoAnswerError("it is down")
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


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(stream=[SPEED | {"format": "avro"}], registry={"url": "http://registry"})
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"registry.url: authlib is not installed: .*localstreambuffer\[registry\]"):
        registry.check_installed(settings)
    registry.check_installed(make_settings(stream=[SPEED]))


class Answer(NamedTuple):
    """An answer of a registry: its status and its content."""

    status: int
    content: Any


@contextmanager
def served(answers: dict[str, Answer]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
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
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
        assert RegistryClient(RegistrySettings(url=url)).fetch(7) == RegisteredSchema("AVRO", "W", ("I", "O"))


def test_the_type_of_a_schema_is_known() -> None:
    with served({"/schemas/ids/7": Answer(200, {"schema": "{}", "schemaType": "JSON"})}) as (url, _):
        assert RegistryClient(RegistrySettings(url=url)).fetch(7) == RegisteredSchema("JSON", "{}")


def test_an_id_that_the_registry_does_not_know_is_told_from_a_wrong_address() -> None:
    with served({"/schemas/ids/8": Answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"})}) as (url, _):
        client = RegistryClient(RegistrySettings(url=url))
        assert client.fetch(7) is None
        with pytest.raises(NoAnswerError, match="status 404"):
            client.fetch(8)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(401, {"error_code": 401, "message": "Unauthorized"}), "status 401"),
        (Answer(500, b"broken"), "500"),
        (Answer(200, b"<html>"), "JSONDecodeError"),
    ],
)
def test_any_other_answer_is_none(answer: Answer, reason: str) -> None:
    with served({"/schemas/ids/7": answer}) as (url, _), pytest.raises(NoAnswerError, match=reason):
        RegistryClient(RegistrySettings(url=url)).fetch(7)


def test_a_registry_that_is_down_does_not_answer() -> None:
    with served({}) as (url, _):
        pass
    with pytest.raises(NoAnswerError, match="refused"):
        RegistryClient(RegistrySettings(url=url)).fetch(7)


def test_the_user_signs_in_with_the_password_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("se:cret\n")
    with served({"/schemas/ids/7": Answer(200, {"schema": "W"})}) as (url, asked):
        RegistryClient(RegistrySettings(url=url, user="me", password_file=file)).fetch(7)
    assert asked == [("/schemas/ids/7", "Basic bWU6c2U6Y3JldA==")]
