"""A member of the consumer group that is fenced rejoins without the units that it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from broker.settings import load_settings
from joiner.runtime.clock import SystemClock
from joiner.runtime.membership.consumer_group import GroupMembership, InstanceInUse
from joiner.runtime.settings import PROCESS, JoinerSettings
from tests.simulation.memory_clients import MemoryMessage

FATAL = KafkaError._FATAL  # noqa: SLF001 - its only name
FENCED = KafkaError(FATAL, "Fatal error: static consumer fenced by other consumer with same group.instance.id")


class Client:
    """A consumer that is assigned two units, and is then fenced. As the library, it does not revoke them."""

    made = 0

    def __init__(self, *_config: Any, **_more: Any) -> None:
        Client.made += 1
        self._events: list[str] = ["assign", "fence"]

    def subscribe(self, _topics: list[str], **callbacks: Any) -> None:
        self._callbacks = callbacks

    def poll(self, _timeout_s: float) -> MemoryMessage | None:
        event = self._events.pop(0) if self._events else ""
        if event == "assign" and Client.made == 1:
            self._callbacks["on_assign"](self, [TopicPartition("machine.data", number) for number in (0, 2)])
        return MemoryMessage((None, -1), -1, fault=FENCED) if event == "fence" else None

    def incremental_assign(self, _places: Any) -> None: ...

    def pause(self, _places: Any) -> None: ...

    def unsubscribe(self) -> None: ...

    def assignment(self) -> list[TopicPartition]:
        return []

    def close(self) -> None: ...


def test_the_units_of_a_fenced_member_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joiner.runtime.kafka.clients.Consumer", Client)
    lost: list[tuple[list[int], bool]] = []
    settings = load_settings(JoinerSettings, Path("lsb.toml"))
    member = GroupMembership(settings, PROCESS, lambda units, is_lost: lost.append((units, is_lost)), SystemClock())
    member.poll()
    assert member.units == {0, 2}
    member.poll()
    assert (lost, member.units, Client.made) == ([([0, 2], True)], set(), 2)
    member.poll()
    with pytest.raises(InstanceInUse):  # a second time means that another process has the name
        member.poll()
