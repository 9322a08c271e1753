"""Metrics, health and readiness over HTTP, with a server on the loopback interface and an injected clock."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram
from pydantic import ValidationError

from broker.metrics import Distribution, TelemetryServer
from broker.settings import MetricsSettings, SettingsError


def settings(listen: object = "127.0.0.1:0", stalled_after: str = "10s") -> MetricsSettings:
    return MetricsSettings.model_validate({"listen": listen, "stalled_after": stalled_after})


def ask(telemetry: TelemetryServer, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{telemetry.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_service_is_unhealthy_while_its_loop_is_stalled() -> None:
    clock = Clock()
    with TelemetryServer(settings(), clock=clock) as telemetry:
        assert ask(telemetry, "/healthz") == (200, "ok\n")
        clock.now_s += 10.0
        assert ask(telemetry, "/healthz")[0] == 200
        clock.now_s += 0.1
        assert ask(telemetry, "/healthz") == (503, "the main loop has been stuck for 10 s\n")
        assert ask(telemetry, "/readyz") == ask(telemetry, "/healthz")
        telemetry.heartbeat()
        assert ask(telemetry, "/healthz") == (200, "ok\n")


def test_a_service_that_is_not_ready_gives_the_reason() -> None:
    with TelemetryServer(settings()) as telemetry:
        assert ask(telemetry, "/readyz") == (503, "it is starting\n")
        assert "lsb_ready 0.0" in ask(telemetry, "/metrics")[1]
        telemetry.why_unready = lambda: ""
        assert ask(telemetry, "/readyz") == (200, "ok\n")
        assert "lsb_ready 1.0" in ask(telemetry, "/metrics")[1]
        assert ask(telemetry, "/healthz")[0] == 200


def test_an_address_in_use_is_an_error_that_names_it_and_the_remedy() -> None:
    with (
        TelemetryServer(settings()) as first,
        pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{first.port} .*LSB_METRICS"),
    ):
        TelemetryServer(settings(first.port)).__enter__()


@pytest.mark.parametrize(("host", "why"), [("192.0.2.1", "Cannot assign"), ("é" * 70, "encoding of hostname failed")])
def test_an_address_of_no_interface_is_an_error_with_a_remedy_that_fits(host: str, why: str) -> None:
    remedy = "an address of this machine and a port that no other process uses"
    with pytest.raises(SettingsError, match=rf"metrics\.listen: {host}:0 cannot be used: {why}.*{remedy}"):
        TelemetryServer(settings(f"{host}:0")).__enter__()


def test_what_has_ended_listens_no_more_and_its_port_is_free_at_once() -> None:
    with TelemetryServer(settings()) as telemetry:
        port = telemetry.port
    with TelemetryServer(settings(port)) as again:
        assert again.port == port
        assert ask(again, "/healthz")[0] == 200


def test_no_server_listens_without_an_address() -> None:
    with TelemetryServer(MetricsSettings()) as telemetry:
        assert (telemetry.is_on, telemetry.port) == (False, 0)


def test_readings_are_read_when_somebody_asks_with_their_labels_and_types() -> None:
    held: dict[tuple[str, ...], float] = {("1", "left"): 3.0}
    with TelemetryServer(settings()) as telemetry:
        telemetry.readings.gauge("held_records", "What is held.", lambda: held, ("unit", "side"))
        telemetry.readings.counter("events", "Events.", lambda: 7)
        held["1", "right"] = 4.0
        _, text = ask(telemetry, "/metrics")
        assert 'held_records{side="left",unit="1"} 3.0' in text
        assert 'held_records{side="right",unit="1"} 4.0' in text
        assert "# TYPE events_total counter\nevents_total 7.0\n" in text
        assert "process_resident_memory_bytes" in text
        _, text = ask(telemetry, "/metrics?x=1", Accept="application/openmetrics-text; version=1.0.0")
        assert text.endswith("# EOF\n")


def test_a_value_that_cannot_be_read_costs_its_own_answer_only(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> float:
        raise ValueError("not now")

    with TelemetryServer(settings()) as telemetry:
        telemetry.readings.gauge("broken", "Never there.", fail)
        with pytest.raises((urllib.error.URLError, OSError)):
            ask(telemetry, "/metrics")
        assert ask(telemetry, "/healthz")[0] == 200
        assert ask(telemetry, "/else")[0] == 404
    assert "not now" in caplog.text


def test_two_services_of_one_process_have_nothing_in_common() -> None:
    one, other = TelemetryServer(settings()), TelemetryServer(settings())
    one.readings.counter("events", "Events.", lambda: 1)
    assert one.registry.get_sample_value("events_total") == 1
    assert other.registry.get_sample_value("events_total") is None


def test_many_observations_at_once_are_as_many_one_by_one() -> None:
    bounds, values, counts = (0.1, 1.0, 10.0), [0.05, 0.1, 0.10001, 5.0, 10.0, 11.0], [1, 2, 3, 1, 5, 2]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    together = Distribution(ours, "d", "All.", bounds)
    together.observe(values[:2], counts[:2])
    together.observe(values[2:], counts[2:])
    together.observe(7.0)
    singly = Histogram("d", "All.", registry=theirs, buckets=bounds)
    for value, count in zip([*values, 7.0], [*counts, 1], strict=True):
        for _ in range(count):
            singly.observe(value)
    for bound in ("0.1", "1.0", "10.0", "+Inf"):
        label = {"le": bound}
        assert ours.get_sample_value("d_bucket", label) == theirs.get_sample_value("d_bucket", label)
    assert ours.get_sample_value("d_count") == 15
    assert ours.get_sample_value("d_sum") == pytest.approx(theirs.get_sample_value("d_sum"))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (9464, "127.0.0.1:9464"),
        ("9464", "127.0.0.1:9464"),
        (":0", "127.0.0.1:0"),
        ("0.0.0.0:9464", "0.0.0.0:9464"),
        ("host.plant:1", "host.plant:1"),
        ("[::1]:65535", "[::1]:65535"),
    ],
)
def test_an_address_is_a_port_of_the_loopback_or_host_and_port(given: object, meant: str) -> None:
    assert settings(given).listen == meant


@pytest.mark.parametrize(
    "given", ["", "host", "host:", "65536", "1:2:3", "http://h:1", "h:-1", "h: 1", -1, 1.5, True, []]
)
def test_what_is_no_address_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="must be a port or host:port"):
        settings(given)


def test_the_main_loop_refreshes_values_once_a_second_and_never_without_a_server() -> None:
    clock = Clock()
    telemetry = TelemetryServer(settings(), clock=clock)
    looks = []
    for now_s in (100.0, 100.5, 101.0, 101.9, 102.5):
        clock.now_s = now_s
        looks.append(telemetry.is_look_due())
    assert looks == [True, False, True, False, True]
    assert not TelemetryServer(MetricsSettings()).is_look_due()
