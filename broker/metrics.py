"""Metrics and health of a service over HTTP: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for operators.

Healthy means that the main loop is running; ready means that the service can do its work. A service waiting for Kafka
is healthy but not ready: restarting it would not help.

No metric is updated per record. Values that a service already keeps are read when ``/metrics`` is requested
(`Readings`). Other values are added once per batch, even if there is one observation per record (`Distribution`). Each
service has its own registry, so that several services can run in one process. Metrics contain no secrets and no record
data, but the server has no authentication, so it should listen on the loopback interface, or where only operators can
connect.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from socket import AF_INET, AF_INET6
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from broker.settings import MetricsSettings, SettingsError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

DURATIONS_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of histogram buckets for durations, from a single commit to a one-minute outage."""

_REQUEST_TIMEOUT_S: Final = 10.0
"""Timeout for reading an HTTP request. Without it, a client that sends nothing would tie up a thread forever."""

_LOOK_EVERY_S: Final = 1.0
"""How often the main loop refreshes the metrics that no other thread may read."""

_POLL_S: Final = 0.1
"""How often the server's thread checks whether it has to shut down."""

_Values = float | Mapping[tuple[str, ...], float]
"""The value of a metric without labels, or, for a metric with labels, the value for each tuple of label values."""

log = logging.getLogger(__name__)


class Readings(Collector):
    """Metrics whose values the service already keeps. The thread that serves a request for ``/metrics`` reads them.

    A function that reads a value must not call a Kafka consumer. confluent-kafka 2.16 lets only one thread at a time
    into a consumer. While the main loop keeps calling `consume`, any other thread waits forever, even in
    ``get_watermark_offsets(cached=True)``.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families: list[Callable[[], Metric]] = []
        registry.register(self)

    def counter(
        self,
        name: str,
        meaning: str,
        read: Callable[[], _Values],
        labels: Sequence[str] = (),
        *,
        formerly: str | None = None,
    ) -> None:
        """Register a counter metric whose value is returned by ``read``.

        If the metric has labels, ``labels`` are their names and ``read`` returns a mapping from tuples of label values
        to values. ``formerly`` is the metric's name in the previous release, under which it remains exposed.
        """
        self._add(CounterMetricFamily, (name, meaning, formerly), read, labels)

    def gauge(
        self,
        name: str,
        meaning: str,
        read: Callable[[], _Values],
        labels: Sequence[str] = (),
        *,
        formerly: str | None = None,
    ) -> None:
        """Register a gauge metric. The arguments are the same as for `counter`."""
        self._add(GaugeMetricFamily, (name, meaning, formerly), read, labels)

    def _add(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        about: tuple[str, str, str | None],
        read: Callable[[], _Values],
        labels: Sequence[str],
    ) -> None:
        name, meaning, formerly = about
        self._families.append(lambda: _filled(kind(name, meaning, labels=labels), read()))
        if formerly is not None:
            note = f"Deprecated: use {name}. Will be removed in the next release."
            self._families.append(lambda: _filled(kind(formerly, note, labels=labels), read()))

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering this collector does not make the registry read their values."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See `Collector.collect`."""
        return (family() for family in self._families)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: _Values) -> Metric:
    for labels, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric(labels, value)
    return family


class Distribution(Collector):
    """A Prometheus histogram that accepts many observations at once. prometheus_client's own accepts one at a time."""

    def __init__(self, registry: CollectorRegistry, name: str, meaning: str, bounds: Sequence[float]) -> None:
        """Register an empty histogram.

        ``bounds`` are the upper bounds of the buckets, in ascending order. An unbounded last bucket is added.
        """
        self._name, self._meaning = name, meaning
        self._bounds = np.array(bounds, dtype=np.float64)
        self._counts = np.zeros(len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()
        registry.register(self)

    def observe(self, values: ArrayLike, counts: ArrayLike | None = None) -> None:
        """Add observations to the histogram. ``counts`` says how often each value was observed (default: once)."""
        seen = np.atleast_1d(np.asarray(values, dtype=np.float64))
        weights = np.ones(len(seen)) if counts is None else np.atleast_1d(np.asarray(counts, dtype=np.float64))
        found = np.bincount(self._bounds.searchsorted(seen), weights, len(self._counts))
        with self._lock:
            self._counts += found
            self._sum += float(seen @ weights)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, like `Readings.describe`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See `Collector.collect`."""
        with self._lock:
            counts, total = self._counts.tolist(), self._sum
        ends = [*map(str, self._bounds.tolist()), "+Inf"]
        buckets = list(zip(ends, accumulate(counts), strict=True))
        yield HistogramMetricFamily(self._name, self._meaning, buckets=buckets, sum_value=total)


class TelemetryServer:
    """The metrics registry, health and readiness of a service, served over HTTP.

    Use it as a context manager for the lifetime of the service. If ``metrics.listen`` is not set, no server is started.
    """

    def __init__(self, settings: MetricsSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._heartbeat_s = clock()
        self._looked_s = float("-inf")
        self._server: _Server | None = None
        self.is_on = settings.listen is not None
        self.registry = CollectorRegistry()
        self.readings = Readings(self.registry)
        self.readings.gauge("lsb_ready", "1 if /readyz reports ready, else 0.", lambda: not self.unready())
        ProcessCollector(registry=self.registry)
        self.why_stuck: Callable[[], str] = lambda: ""
        """Returns why a loop beside the main one is stuck, or an empty string. Called from other threads."""
        self.why_unready: Callable[[], str] = lambda: "it is starting"
        """Returns a few words on why the service is not ready, or an empty string if it is. Called from other
        threads."""

    def heartbeat(self) -> None:
        """Record that the main loop has completed another iteration."""
        self._heartbeat_s = self._clock()

    def is_look_due(self) -> bool:
        """Return whether the main loop should now refresh the metrics that no other thread may read.

        True at most once a second, and never if the server is off.
        """
        if not self.is_on or self._clock() - self._looked_s < _LOOK_EVERY_S:
            return False
        self._looked_s = self._clock()
        return True

    def unhealthy(self) -> str:
        """Return why the service is unhealthy, or an empty string if it is healthy."""
        stalled_s = self._clock() - self._heartbeat_s
        if stalled_s <= self._settings.stalled_after / 1e9:
            return self.why_stuck()
        return f"the main loop has been stuck for {stalled_s:.0f} s"

    def unready(self) -> str:
        """Return why the service is not ready, or an empty string if it is."""
        return self.unhealthy() or self.why_unready()

    @property
    def port(self) -> int:
        """The port on which the server listens, or 0 if it is not listening."""
        return int(self._server.server_address[1]) if self._server is not None else 0

    def __enter__(self) -> Self:
        """Start listening. Raises SettingsError if the address cannot be used."""
        if self._settings.listen is not None:
            host, _, port = self._settings.listen.rpartition(":")
            try:
                self._server = _Server(host.strip("[]"), int(port), self)
            except (OSError, TypeError) as error:  # TypeError: the host name cannot be encoded
                reason = getattr(error, "strerror", None) or error
                raise SettingsError(
                    f"metrics.listen: {self._settings.listen} cannot be used: {reason}; set it (or "
                    "LSB_METRICS__LISTEN) to an address of this machine and a port that no other process uses, or to "
                    "port 0 for any free port"
                ) from error
            threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True).start()
            log.info("metrics at http://%s:%s/metrics", host, self.port)
        return self

    def __exit__(self, *_error: object) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, telemetry: TelemetryServer) -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self.telemetry = telemetry
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind the socket. Unlike HTTPServer's method, do not look up the host name, which may take seconds."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed request: the client has disconnected, or a value cannot be read. The service keeps running."""
        del request
        error = sys.exception()
        level = logging.DEBUG if isinstance(error, ConnectionError) else logging.WARNING
        log.log(level, "the request from %s was not answered: %r", client_address, error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_TIMEOUT_S
    wbufsize = -1
    """Buffer each response and send it in one piece: a second packet would wait until the client's TCP stack has
    acknowledged the first."""

    def do_GET(self) -> None:
        telemetry = self.server.telemetry
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, encode(telemetry.registry), kind)
        elif path in {"/healthz", "/readyz"}:
            why = telemetry.unhealthy() if path == "/healthz" else telemetry.unready()
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK, f"{why or 'ok'}\n".encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"try /metrics, /healthz or /readyz\n")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Do not log requests, because Prometheus sends one every few seconds."""
