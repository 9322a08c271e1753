"""Does the registry's client ask once, within limits, and say what is wrong?"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from joiner.mapping.avro.schema import parse_schema
from joiner.mapping.framing import SCHEMA_LENGTH_MAX, RegisteredSchema
from joiner.mapping.settings import RegistrySettings
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.batches.registry_client import (
    ANSWER_BYTES_MAX,
    NoAnswerError,
    RegistryClient,
    UnreachableError,
)


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


def test_the_type_of_a_schema_is_known() -> None:
    with served({"/schemas/ids/7": Answer(200, {"schema": "{}", "schemaType": "JSON"})}) as (url, _):
        # Its text is not kept, because nothing uses it.
        assert client_of(url=url).fetch(7) == RegisteredSchema("JSON", "")


def test_the_type_of_a_schema_can_be_part_of_a_dead_letter() -> None:
    with served({"/schemas/ids/7": Answer(200, {"schema": "{}", "schemaType": "\ud800\n" * 100})}) as (url, _):
        assert client_of(url=url).fetch(7) == RegisteredSchema("?" * 40, "")


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


@contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """Yield an address at which connections are neither accepted nor refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as waiting:
        address = server.getsockname()
        for _ in range(4):  # until no more are accepted
            one = waiting.enter_context(socket.socket())
            one.settimeout(0)
            one.connect_ex(address)
        yield address


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int], family: int = socket.AF_INET) -> None:
    """Let any host have these addresses. ``family``: of the first one."""
    families = [family, *[socket.AF_INET] * (len(addresses) - 1)]
    found = [(one, socket.SOCK_STREAM, 6, "", address) for one, address in zip(families, addresses, strict=True)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def test_all_addresses_of_a_host_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent() as address:
        resolve_to(monkeypatch, *[address] * 40)
        begun_s = time.monotonic()
        with pytest.raises(UnreachableError, match=r"does not answer within 0\.3 s"):
            client_of(url="http://registry", timeout="300ms").fetch(7)
        assert time.monotonic() - begun_s < 6


def test_an_address_that_does_not_answer_leaves_time_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with served({"/schemas/ids/7": Answer(200, {"schema": "W"})}) as (url, _), silent() as address:
        port = int(url.rpartition(":")[2])
        resolve_to(monkeypatch, address, ("127.0.0.1", port))
        assert client_of(url="http://registry", timeout="2s").fetch(7) == RegisteredSchema("AVRO", "W")


def test_an_address_that_the_system_cannot_use_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many names have IPv6 addresses, and some systems have no IPv6."""
    with served({"/schemas/ids/7": Answer(200, {"schema": "W"})}) as (url, _):
        port = int(url.rpartition(":")[2])
        resolve_to(monkeypatch, ("::1", port), ("127.0.0.1", port), family=9_999)
        assert client_of(url="http://registry").fetch(7) == RegisteredSchema("AVRO", "W")


def test_another_address_of_the_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with served({"/schemas/ids/7": Answer(200, {"schema": "W"})}) as (url, _):
        port = int(url.rpartition(":")[2])
        resolve_to(monkeypatch, ("127.0.0.1", 1), ("127.0.0.1", port))
        assert client_of(url=f"http://registry:{port}").fetch(7) == RegisteredSchema("AVRO", "W")
    with pytest.raises(UnreachableError, match="refused"):
        client_of(url=f"http://registry:{port}").fetch(7)


def test_a_host_can_be_an_ipv6_address_without_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def resolve(*given: Any, **_: Any) -> list[Any]:
        asked.append(given)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for url in ("http://[::1]", "https://[::1]"):
        with pytest.raises(UnreachableError, match="its host has no address"):
            client_of(url=url).fetch(7)
    assert asked == [("::1", 80), ("::1", 443)]


def test_a_password_needs_a_user() -> None:
    with pytest.raises(ValueError, match="a password is set without a user"):
        RegistrySettings.model_validate({"url": "http://registry", "password": "x"})


def test_an_id_that_the_registry_does_not_know_is_told_from_a_wrong_address() -> None:
    with served({"/schemas/ids/8": Answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"})}) as (url, _):
        client = client_of(url=url)
        assert client.fetch(7) is None
        with pytest.raises(NoAnswerError, match="status 404"):
            client.fetch(8)


def test_an_id_that_no_schema_can_have_is_not_asked_for() -> None:
    # To such a question, registries answer with status 404 and without the code that says that a schema is unknown.
    answers = {f"/schemas/ids/{number}": Answer(404, {"error_code": 404}) for number in (2**31 - 1, 2**31, 2**32 - 1)}
    with served(answers) as (url, asked):
        client = client_of(url=url)
        assert [client.fetch(number) for number in (2**31, 2**32 - 1)] == [None, None]
        with pytest.raises(NoAnswerError, match="status 404"):
            client.fetch(2**31 - 1)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(401, {"error_code": 401, "message": "Unauthorized"}), "status 401"),
        (Answer(500, b"broken"), "500"),
        (Answer(500, {"message": "half of \ud83d\nand more"}), r"status 500: half of \?\?and more$"),
        (Answer(500, {"message": "x" * 1_000}), "x{250}$"),
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
        (
            Answer(200, {"schema": "W", "references": [{"name": "A", "subject": "\ud800", "version": 1}]}),
            "does not know",
        ),
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


def test_a_host_without_a_valid_name_does_not_answer() -> None:
    # The settings refuse it.
    settings = RegistrySettings.model_construct(url="http://a..b", timeout=10**9, user=None, ca_file=None)
    with pytest.raises(UnreachableError, match="label"):
        RegistryClient(settings, SystemClock()).fetch(7)


def test_the_user_signs_in_with_the_password_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("se:cret\n")
    with served({"/schemas/ids/7": Answer(200, {"schema": "W"})}) as (url, asked):
        client_of(url=url, user="me", password_file=file).fetch(7)
    assert asked == [("/schemas/ids/7", "Basic bWU6c2U6Y3JldA==")]
