"""Which error each server response causes, tested over a real socket."""

# ruff: noqa: D101 - the names of tests, and of the parts of a stand-in, are descriptive enough

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from broker.settings import InfluxdbSettings
from db_connector.settings import ConnectorSettings
from db_connector.sinks.influxdb import InfluxSink
from db_connector.sinks.sink import (
    MisconfiguredError,
    RefusedError,
    TooLargeError,
    UnavailableError,
    WriteError,
)


class Server(HTTPServer):
    """Sends the same response to every request, and keeps the requests."""

    status, body, headers = 204, b"", dict[str, str]()
    paths: list[str]
    seen: list[tuple[dict[str, str], bytes]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.server.seen.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as found:
        found.paths, found.seen = [], []
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def database_at(port: int, **settings: object) -> InfluxSink:
    influxdb = InfluxdbSettings.model_validate({"url": f"http://127.0.0.1:{port}", "token": "user:secret"})
    return InfluxSink(influxdb, ConnectorSettings.model_validate(settings), "ms")


def answer(server: Server, status: int, body: bytes = b"", **headers: str) -> WriteError:
    server.status, server.body = status, body
    server.headers = {name.replace("_", "-"): value for name, value in headers.items()}
    database = database_at(server.server_port)
    with pytest.raises(WriteError) as raised:
        database.write([b"m f=1 1"])
    database.close()
    return raised.value


def test_a_write_is_one_v2_request_in_nanoseconds(server: Server) -> None:
    database = database_at(server.server_port)
    database.write([b"m f=1.0 1", b"m f=2.0 2"])
    database.close()
    assert server.paths == ["/api/v2/write?org=-&bucket=lsb%2Fautogen&precision=ns"]
    ((headers, body),) = server.seen
    assert body == b"m f=1.0 1\nm f=2.0 2"
    assert headers["authorization"] == "Token user:secret"
    assert "content-encoding" not in headers


def test_gzip_is_sent_where_it_is_set(server: Server) -> None:
    database = database_at(server.server_port, gzip=True)
    database.write([b"m f=1.0 1"] * 100)
    database.close()
    ((headers, body),) = server.seen
    assert headers["content-encoding"] == "gzip"
    assert len(body) < 100


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, b'{"error":"partial write: bad dropped=3"}', RefusedError, "partial write: bad dropped=3"),
        (422, b'{"code":"unprocessable entity","message":"partial write"}', RefusedError, "partial write"),
        (401, b'{"error":"authorization failed"}', MisconfiguredError, "influxdb.token"),
        (403, b'{"error":"not authorized"}', MisconfiguredError, "grant"),
        (404, b'{"error":"database not found: \\"lsb\\""}', MisconfiguredError, "create the database"),
        (301, b"", MisconfiguredError, "HTTP 301"),
        (200, b"<html>welcome</html>", MisconfiguredError, "does influxdb.url point"),
        (413, b'{"error":"Request Entity Too Large"}', TooLargeError, "Too Large"),
        (408, b"", UnavailableError, "408"),
        (500, b'{"error":"timeout"}', UnavailableError, "timeout"),
        (503, b"", UnavailableError, "503"),
        (502, b"\xff\xfe", UnavailableError, ""),
        (502, b"[" * 200_000, UnavailableError, "[["),
        (400, b"[" * 200_000, RefusedError, "[["),
        (400, '{"error":"dropped=\u00b2"}'.encode(), RefusedError, "dropped="),
        (400, b'{"error":"dropped=' + b"9" * 5_000 + b'"}', RefusedError, "dropped="),
    ],
)
def test_an_answer_means_what_the_writer_must_do(
    server: Server, status: int, body: bytes, kind: type[WriteError], words: str
) -> None:
    error = answer(server, status, body, X_Influxdb_Version="1.8.10")
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    "body",
    [
        b'{"message":"no Route matched with those values"}',
        b'{"error":"dropped=1"}',
        b"<html>The plain HTTP request was sent to HTTPS port</html>",
        b'["not InfluxDB"]',
    ],
)
def test_a_gateway_that_answers_in_the_form_of_the_database_refuses_no_point(
    server: Server, status: int, body: bytes
) -> None:
    error = answer(server, status, body)
    assert type(error) is MisconfiguredError
    assert f"HTTP {status} from http://127.0.0.1" in str(error)
    assert "the response has no X-Influxdb-Version header" in str(error)


@pytest.mark.parametrize("header", ["X_Influxdb_Version", "x_influxdb_version", "X_Platform_Error_Code"])
def test_the_database_says_that_an_answer_is_its_own(server: Server, header: str) -> None:
    # InfluxDB 2.x sends the last of these headers with each error.
    error = answer(server, 400, b'{"code":"invalid","message":"unable to parse"}', **{header: "2.7.4"})
    assert type(error) is RefusedError


@pytest.mark.parametrize(("headers", "is_own"), [({}, False), ({"X_Influxdb_Version": "1.8.10"}, True)])
def test_an_answer_that_the_body_is_too_large_says_whether_it_is_the_databases_own(
    server: Server, headers: dict[str, str], *, is_own: bool
) -> None:
    error = answer(server, 413, b"", **headers)
    assert isinstance(error, TooLargeError)
    assert error.is_own == is_own


@pytest.mark.parametrize(
    ("message", "refuses_all"),
    [
        ("partial write: points beyond retention policy dropped=1", True),
        ("partial write: points beyond retention policy dropped=17", False),
        ("partial write: key contains invalid unicode dropped=1", False),
        ("points beyond retention policy", False),
    ],
)
def test_a_reason_holds_for_all_points_if_it_is_about_the_bucket_and_all_were_dropped(
    server: Server, message: str, *, refuses_all: bool
) -> None:
    error = answer(server, 400, f'{{"error":"{message}"}}'.encode(), X_Influxdb_Version="1.8.10")
    assert isinstance(error, RefusedError)
    assert error.refuses_all == refuses_all


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("7", 7.0), ("\u00b2", None), ("9" * 400, None), ("soon", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)],
)
def test_retry_after_is_read_in_seconds(server: Server, given: str, seconds: float | None) -> None:
    error = answer(server, 429, b"{}", Retry_After=given)
    assert isinstance(error, UnavailableError)
    assert error.retry_after_s == seconds


def test_no_server_is_unavailable() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    database = database_at(port)
    with pytest.raises(UnavailableError, match="refused"):
        database.write([b"m f=1.0 1"])
    database.close()


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:
        database = database_at(silent.server_port, request_timeout="100ms")
        with pytest.raises(UnavailableError, match="timed out"):
            database.write([b"m f=1.0 1"])
        database.close()


def test_the_token_is_in_no_message(server: Server) -> None:
    assert "secret" not in str(answer(server, 401, b'{"error":"authorization failed"}'))
