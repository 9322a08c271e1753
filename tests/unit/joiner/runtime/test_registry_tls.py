"""Is a schema registry asked over TLS only if its certificate is trusted, and is it said why not?"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from joiner.mapping.framing import RegisteredSchema
from joiner.runtime.kafka.batches.registry_client import UnreachableError
from tests.certificates import make_certificates
from tests.unit.joiner.runtime.test_registry_client import Answer, client_of, served

LOGIN = {"user": "me", "password": "secret"}
ANSWERS = {"/schemas/ids/7": Answer(200, {"schema": "W"})}


def tls_of(folder: Path, **options: str) -> tuple[Path, ssl.SSLContext]:
    """Return a new CA's certificate, and what a server needs that has a certificate of it."""
    folder.mkdir(exist_ok=True)
    authority, certificate, key = make_certificates(folder, **options)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return authority, context


def test_a_registry_with_a_certificate_of_the_given_authority_is_asked(tmp_path: Path) -> None:
    authority, tls = tls_of(tmp_path)
    with served(ANSWERS, tls) as (url, asked):
        client = client_of(url=url, ca_file=authority, **LOGIN)
        assert client.fetch(7) == RegisteredSchema("AVRO", "W")
    assert asked == [("/schemas/ids/7", "Basic bWU6c2VjcmV0")]


@pytest.mark.parametrize("trusted", ["the usual", "another"])
def test_a_certificate_of_another_authority_is_not_accepted(tmp_path: Path, trusted: str) -> None:
    _, tls = tls_of(tmp_path)
    other, _ = tls_of(tmp_path / "other")
    with served(ANSWERS, tls) as (url, asked):
        client = client_of(url=url, ca_file=other if trusted == "another" else None, **LOGIN)
        with pytest.raises(UnreachableError, match=r"not accepted \(.+\): registry\.ca_file must contain"):
            client.fetch(7)
    assert asked == []


def test_a_certificate_for_another_host_is_not_accepted(tmp_path: Path) -> None:
    authority, tls = tls_of(tmp_path, names="DNS:registry.plant")
    with served(ANSWERS, tls) as (url, asked):
        client = client_of(url=url, ca_file=authority, **LOGIN)
        with pytest.raises(UnreachableError, match=r"not valid for '127\.0\.0\.1'.*registry\.url a host name"):
            client.fetch(7)
    assert asked == []


def test_a_server_that_does_not_answer_over_tls_is_waited_for_only_so_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = client_of(url=f"https://127.0.0.1:{server.getsockname()[1]}", timeout="300ms")
        with pytest.raises(UnreachableError, match=r"does not answer within 0\.3 s"):
            client.fetch(7)


def test_a_registry_without_tls_is_not_reached_over_https() -> None:
    with served(ANSWERS) as (url, _), pytest.raises(UnreachableError, match="SSL"):
        client_of(url=url.replace("http:", "https:")).fetch(7)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with served(ANSWERS) as (url, _):
        assert client_of(url=url).fetch(7) == RegisteredSchema("AVRO", "W")
