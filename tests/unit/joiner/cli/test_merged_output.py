"""How does the producer of the merged topics begin?"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.cli.merging import output
from joiner.cli.merging.output import MergedOutput
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings


class Client:
    """Stands in for a producer. Kafka refuses the first ``busy`` attempts to initialise the id."""

    def __init__(self, busy: int) -> None:
        self.calls: list[str] = []
        self._busy = busy

    def list_topics(self, topic: str, _timeout_s: float) -> None:
        self.calls.append(f"connect to {topic}")

    def init_transactions(self, timeout_s: float) -> None:
        self.calls.append(f"init within {timeout_s}")
        if self._busy > 0:
            self._busy -= 1
            raise KafkaException(KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, retriable=True))


def test_it_connects_first_and_calls_again_while_kafka_ends_the_last_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Otherwise, the client waits for half a second.
    client: Any = Client(busy=1)
    monkeypatch.setattr(output, "make_producer", lambda *_given, **_more: client)
    settings = make_settings()
    MergedOutput(settings, ManualClock())
    state_topic = f"{settings.application.name}.merged.state"
    assert client.calls == [f"connect to {state_topic}", "init within 0.02", "init within 0.04"]
