"""Do members of a consumer group recover by themselves when the client loses a request?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.kafka.group_member import METADATA_REFRESH_MS, give_partitions_back, member_config
from broker.settings import load_settings
from db_connector.kafka import reader
from db_connector.settings import DbConnectorSettings
from joiner.runtime.clock import SystemClock
from joiner.runtime.membership import consumer_group
from joiner.runtime.settings import PROCESS, JoinerSettings

CONFIG = Path("lsb.toml")


def joiner_member(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the client settings of a joiner's group membership."""
    made: list[dict[str, Any]] = []

    class Member:
        def __init__(self, config: dict[str, Any], **_more: Any) -> None:
            made.append(config)

        def subscribe(self, *_topics: Any, **_callbacks: Any) -> None:
            pass

    patch.setattr("joiner.runtime.kafka.clients.Consumer", Member)
    consumer_group.GroupMembership(load_settings(JoinerSettings, CONFIG), PROCESS, lambda *_: None, SystemClock())
    return made[0]


def test_a_member_whose_metadata_request_was_lost_asks_again_within_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    joiner = joiner_member(monkeypatch)
    database = reader._consumer_config(load_settings(DbConnectorSettings, CONFIG))  # noqa: SLF001 - the client's config
    for config in (joiner, database):
        assert 0 < config["topic.metadata.refresh.interval.ms"] <= config["session.timeout.ms"]


def test_a_rebalance_waits_a_minute_for_a_silent_member_and_at_least_a_session() -> None:
    assert member_config(6 * 10**9, None)["max_poll_interval_ms"] == 60_000
    assert member_config(90 * 10**9, None)["max_poll_interval_ms"] == 90_000


def test_only_a_named_instance_is_a_static_member() -> None:
    assert "group_instance_id" not in member_config(6 * 10**9, None)
    assert member_config(6 * 10**9, "one")["group_instance_id"] == "one"
    assert member_config(6 * 10**9, "one")["topic_metadata_refresh_interval_ms"] == METADATA_REFRESH_MS


class Queued:
    """A consumer with queued events. A poll ends at an error or a message; before that, it runs callbacks."""

    def __init__(self, *events: str) -> None:
        self._events = list(events)
        self.assigned: list[str] = []

    def unsubscribe(self) -> None:
        self._events.append("nothing")

    def poll(self, _timeout_s: float) -> str | None:
        while self._events:
            event = self._events.pop(0)
            if event == "error":
                return event
            if event == "assign":
                self.assigned.append("partition")
                self._events.append("revoke")
            if event == "revoke":
                self.assigned.clear()
        return None

    def assignment(self) -> list[str]:
        return self.assigned


@pytest.mark.parametrize("events", [(), ("assign",), ("error", "assign"), ("error", "error", "assign", "error")])
def test_all_that_is_queued_has_happened_before_a_consumer_is_closed(events: tuple[str, ...]) -> None:
    consumer: Any = Queued(*events)
    give_partitions_back(consumer)
    assert not consumer._events  # noqa: SLF001 - what the test has queued
    assert not consumer.assigned


def test_a_consumer_that_keeps_its_partitions_is_given_up_after_a_second() -> None:
    class Stubborn(Queued):
        def assignment(self) -> list[str]:
            return ["partition"]

    now = iter(range(100))
    consumer: Any = Stubborn()
    give_partitions_back(consumer, lambda: float(next(now)))
    assert next(now) <= 4
