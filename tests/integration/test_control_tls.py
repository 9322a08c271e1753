"""Is the control service reached over TLS only, if it has a certificate, and is its session safe from other paths?"""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.certificates import make_certificates
from tests.integration.browser import PASSWORD, users_file
from tests.integration.joiner_application import Application, application
from tests.integration.services import ROOT, kill, logged, start_service, stop


class Serving(NamedTuple):
    """A service with a certificate. ``trusting``: verifies it."""

    port: int
    trusting: ssl.SSLContext

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """Send a request over TLS, and return the answer, whose body has been read."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=30, context=self.trusting)
        with closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), given)
            answer = connection.getresponse()
            answer.read()
        return answer


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


@pytest.fixture
def serving(app: Application, tmp_path: Path) -> Iterator[Serving]:
    authority, certificate, key = make_certificates(tmp_path)
    environment = {
        "LSB_CONTROL__LISTEN": "127.0.0.1:0",
        "LSB_CONTROL__HOSTS": '["localhost"]',
        "LSB_CONTROL__USERS_FILE": str(users_file(tmp_path)),
        "LSB_CONTROL__TLS_CERTIFICATE_FILE": str(certificate),
        "LSB_CONTROL__TLS_KEY_FILE": str(key),
    }
    log = tmp_path / "control.log"
    process = start_service("control", "run", "--config", str(app.config), environment=environment, log=log)
    try:
        port = int(logged(process, log, r"listening on https://127\.0\.0\.1:(\d+)")[1])
        yield Serving(port, ssl.create_default_context(cafile=str(authority)))
        assert stop(process, deadline_s=10.0) == 0
    finally:
        kill(process)


def test_a_session_begins_over_tls_and_its_cookie_is_for_this_host_and_tls_alone(serving: Serving) -> None:
    login = {"name": "vera", "password": PASSWORD}
    origin = f"https://localhost:{serving.port}"
    answer = serving.ask("POST", "/api/v1/session", login, Content_Type="application/json", Origin=origin)
    assert answer.status == 200
    cookie = answer.headers["Set-Cookie"]
    name, _, attributes = cookie.partition("=")
    assert name.startswith("__Host-")
    assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in attributes.split(";")}
    session = cookie.partition(";")[0]
    assert serving.ask("GET", "/api/v1/applications", Cookie=session).status == 200
    assert serving.ask("GET", "/api/v1/applications").status == 401
    # A page that was loaded without TLS is another site.
    plain = f"http://localhost:{serving.port}"
    assert serving.ask("DELETE", "/api/v1/session", Cookie=session, Origin=plain).status == 403
    assert serving.ask("DELETE", "/api/v1/session", Cookie=session, Origin=origin).status == 200


def test_nothing_is_answered_without_tls_or_to_whom_does_not_trust_the_certificate(serving: Serving) -> None:
    plain = http.client.HTTPConnection("localhost", serving.port, timeout=30)
    with closing(plain):
        plain.request("GET", "/health")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            plain.getresponse()
    distrusting = Serving(serving.port, ssl.create_default_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        distrusting.ask("GET", "/health")
    assert serving.ask("GET", "/health").status == 200


def test_a_key_of_another_certificate_is_refused_at_the_start(app: Application, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    _, certificate, _ = make_certificates(tmp_path)
    _, _, key = make_certificates(tmp_path / "other")
    environment = {
        "LSB_CONTROL__TLS_CERTIFICATE_FILE": str(certificate),
        "LSB_CONTROL__TLS_KEY_FILE": str(key),
        "LSB_CONTROL__LISTEN": "127.0.0.1:0",
    }
    log = tmp_path / "refused.log"
    process: subprocess.Popen[bytes] = start_service(
        "control", "run", "--config", str(app.config), environment=environment, log=log
    )
    try:
        assert process.wait(30) == 2
    finally:
        kill(process)
    text = log.read_text()
    assert "the key must belong to the certificate" in text
    assert "Traceback" not in text
    assert str(ROOT) not in text.replace(str(app.config), "")
