"""Orders about a site that has no Kafka, and instances that follow them as the test wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from joiner.runtime.control import (
    Heartbeat,
    Logged,
    MemberRecord,
    Retry,
)
from joiner.runtime.membership import ordering
from joiner.runtime.membership.assign import next_assignment
from joiner.runtime.membership.ordering import Ordering
from joiner.runtime.membership.state import SETTLED_BEATS, SiteState
from joiner.runtime.model import Checkpoint
from joiner.runtime.ownership.unit_reports import Report
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings

UNITS, SITE = 4, "process"


class Kafka:
    """A control topic, and instances that follow what it says whenever it is read, unless they are ``still``."""

    def __init__(self, *instances: str) -> None:
        self.records: list[Logged] = []
        self.orders: list[Any] = []
        self.state = SiteState(SITE)
        self.has_topic, self.is_lost, self.still = True, False, False
        self.reports: list[Report] = []
        self.broken: set[tuple[str, int]] = set()
        self.checkpoints: dict[int, Checkpoint] = {}
        self.elsewhere = set[int]()
        """Units that are at another site."""
        self.is_closed = False
        self.lag = 0
        """For how many reports standbys are not warm yet."""
        self.now_ms = 0
        self.then: Callable[[], None] = lambda: None
        for name in instances:
            for _ in range(SETTLED_BEATS):
                self.append(Heartbeat(site=SITE, instance=name, run=f"run of {name}"))
        for _ in range(10):
            self.follow()

    def append(self, record: MemberRecord) -> None:
        self.now_ms += 1
        self.records.append(Logged(record, len(self.records), self.now_ms))
        self.state.apply(record, self.records[-1].offset)

    def write(self, order: Any) -> None:
        self.orders.append(order)
        if self.is_lost:
            return
        self.append(order)
        if isinstance(order, Retry) and not self.still:
            for name, beat in self.state.live.items():
                if order.unit in beat.failed:
                    self.change(name, failed=[unit for unit in beat.failed if unit != order.unit])

    def close(self) -> None:
        """See `ControlLog`."""
        self.is_closed = bool(self.orders)

    def change(self, name: str, **changes: Any) -> None:
        self.append(msgspec.structs.replace(self.state.live[name], **changes))

    def follow(self) -> None:
        """Let one assignment be written, and the instances follow it."""
        if (following := next_assignment(self.state, UNITS, "a")) is not None:
            self.append(following)
        for name, beat in self.state.live.items():
            owned = {unit for unit, one in enumerate(self.state.units) if one.owner == name}
            broken = {unit for broken_at, unit in self.broken if broken_at == name} & owned
            serves = owned - set(beat.failed) - broken - self.elsewhere
            failed = sorted({*beat.failed, *broken})
            self.lag -= self.lag > 0
            kept = {unit for unit, one in enumerate(self.state.units) if name in one.standbys}
            warm = sorted(kept - self.elsewhere) if not self.lag else []
            self.change(name, serves=sorted(serves), failed=failed, warm=warm)

    def read(self, *_given: Any) -> list[Logged]:
        if not self.still:
            self.follow()
        self.then()
        return list(self.records)


class Case:
    """Orders about the site of a `Kafka`, and what is reported of them."""

    def __init__(self, patch: pytest.MonkeyPatch, *instances: str) -> None:
        self.kafka, self.lines, self.clock = Kafka(*instances), list[str](), ManualClock()
        _use(self.kafka, patch)
        settings = make_settings(partitions=UNITS)
        self.ordering = Ordering(settings, SITE, 10.0, self.clock, self.lines.append)

    def unit_of(self, name: str) -> int:
        return next(unit for unit, one in enumerate(self.kafka.state.units) if one.owner == name)


def _use(kafka: Kafka, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ordering, "Readers", lambda *_: kafka)
    patch.setattr(ordering, "read_checkpoint", lambda _, unit: kafka.checkpoints.get(unit))
    patch.setattr(ordering, "make_admin", lambda _settings: None)
    patch.setattr(ordering, "topic_facts", lambda _admin, names: dict.fromkeys(names) if kafka.has_topic else {})
    patch.setattr(ordering, "read_records", kafka.read)
    patch.setattr(ordering, "read_reports", lambda *_: kafka.reports)
    patch.setattr(ordering, "ControlLog", lambda _settings: kafka)
