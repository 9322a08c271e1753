"""What does the loop do after an error, and when does it count as stuck?"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.topics import TopicError
from broker.metrics import TelemetryServer
from broker.settings import MetricsSettings
from broker.wire.origin import Origin
from joiner.runtime.repartition import repartitioner
from joiner.runtime.repartition.copies import CopyRefused, Refused
from joiner.runtime.repartition.prior import RepartitionError, Stopped
from joiner.runtime.repartition.repartitioner import Repartitioner, RepartitionMetrics
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.repartition.test_copies import SPEED

DENIED = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
REFUSED = CopyRefused(Refused(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), Origin("plant", 1, 2), 3), "target", "")


class Looping(Repartitioner):
    """Repartitions in sessions that fail with given errors. The last one stops it."""

    def __init__(self, *errors: Exception) -> None:
        self.clock = ManualClock()
        self.metrics = RepartitionMetrics(TelemetryServer(MetricsSettings()).readings)
        super().__init__(make_settings(stream=[SPEED]), self.clock, self.metrics)
        self.errors = list(errors)
        self.act: Callable[[], None] = lambda: None

    def _copy(self) -> None:
        self.act()
        if not self.errors:
            self.stop()
            return
        self.metrics.lags = {("plant",): 7}
        raise self.errors.pop(0)

    def _pause(self, seconds: float) -> None:
        self.clock.sleep(seconds)


@pytest.mark.parametrize(
    "error", [RepartitionError("x"), TopicError("x"), DENIED, REFUSED, ValueError("x"), KeyError(), MemoryError()]
)
def test_after_any_error_it_starts_over_and_the_lag_remains(error: Exception) -> None:
    loop = Looping(error, error)
    loop.run()
    assert (loop.errors, loop.metrics.errors, loop.metrics.lags) == ([], 2, {("plant",): 7})
    assert loop.clock.now_s == pytest.approx(1000.6)


def test_the_command_ends_at_a_topic_that_cannot_be_copied() -> None:
    with pytest.raises(TopicError, match="wrong"):
        Looping(TopicError("wrong")).run(strict=True)


def test_it_ends_if_it_is_stopped_while_it_reads_copies() -> None:
    loop = Looping(Stopped(), ValueError("not reached"))
    loop.run()
    assert loop.metrics.errors == 0


def test_a_denial_names_the_topics(caplog: pytest.LogCaptureFixture) -> None:
    Looping(DENIED).run()
    assert "(topics: plant, lsb.plant.repartition)" in caplog.text


def test_messages_that_are_refused_are_counted() -> None:
    loop = Looping(REFUSED, REFUSED)
    loop.run()
    assert loop.metrics.refused == {("plant",): 2}


@pytest.mark.parametrize(("waits_s", "shown"), [(299, ""), (301, "repartitioning has been stuck for 301 s")])
def test_a_session_without_a_turn_for_long_makes_the_process_unhealthy(waits_s: float, shown: str) -> None:
    loop = Looping()
    telemetry = TelemetryServer(MetricsSettings())
    telemetry.why_stuck = loop.why_stuck
    found: list[Any] = []

    def wait() -> None:
        loop.clock.sleep(waits_s)
        found.append(telemetry.unhealthy())

    loop.act = wait
    loop.run()
    assert found == [shown]


@pytest.mark.parametrize(("interval", "waits_s"), [("20ms", 0.02), ("30s", 1.0)])
def test_it_waits_for_messages_for_a_second_at_most_so_that_it_notices_a_stop(
    interval: str, waits_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(stream=[SPEED], application={"commit_interval": interval})
    one = Repartitioner(settings, ManualClock(), RepartitionMetrics(TelemetryServer(MetricsSettings()).readings))
    waited: list[float] = []

    def read(wait_s: float) -> list[Any]:
        waited.append(wait_s)
        one.stop()
        return []

    reader = SimpleNamespace(read=read, offsets=dict, lags=dict, close=lambda: None)
    nothing = SimpleNamespace(check=lambda: None, close=lambda: None)
    monkeypatch.setattr(Repartitioner, "_wait_for_topics", lambda *_given: {})
    for name, stand_in in {
        "make_admin": nothing,
        "read_prior": nothing,
        "TopicWatch": nothing,
        "HangingTransactions": nothing,
        "CopyWriter": nothing,
        "SourceReader": reader,
    }.items():
        monkeypatch.setattr(repartitioner, name, lambda *_given, made=stand_in, **_more: made)
    one.run()
    assert waited == [waits_s]
