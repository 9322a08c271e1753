"""An audit topic in memory that several desks share, and desks whose turns are made by the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException

from control.actions import tasks as tasks_module
from control.actions.audit import Record, decode, encode
from control.actions.audit_log import Audited
from control.actions.desk import Accepted, Desk
from control.actions.history import Action
from control.actions.orders import Move, Order
from control.actions.perform import Means, Outcome
from control.facts.reading import Facts, Supervisor
from joiner.runtime.control import Assignment, Drain, UnitAssignment
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
from joiner.runtime.membership.state import SiteState
from joiner.runtime.membership.status.reading import compose_status
from joiner.runtime.settings import JoinerSettings
from tests.integration.services import wait_until
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint

MOVE = Move(to="spark", epochs={"process": 3})


def settings_of(**sections: Any) -> JoinerSettings:
    """Return settings of an application with two units."""
    return make_settings(partitions=2, **sections)


def facts_of(
    sites: tuple[str, str] = ("process", "process"),
    *,
    drained: str = "",
    running: int = 1,
    owners: tuple[str, str] = ("one", "two"),
    is_known: bool = True,
    assignment: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Facts:
    """Return facts of two units at these sites. Instances one and two run at process, and green-1 at spark.

    Of the units at the site process, the first is served by one and the second by two. ``owners``: to which they are
    assigned. ``is_known``: whether the instances at process are known. ``assignment``: other values for fields of its
    `AssignmentStatus`.
    """
    served_by = [name if site == "process" else "green-1" for name, site in zip(("one", "two"), sites, strict=True)]
    found = [
        AppendedCheckpoint(make_checkpoint(unit=unit, site=site, instance=owner), 999_000)
        for unit, (site, owner) in enumerate(zip(sites, served_by, strict=True))
    ]
    serves = {
        name: frozenset(unit for unit, owner in enumerate(served_by) if owner == name)
        for name in ("one", "two", "green-1")
    }
    members = {
        **({"process": {"one": serves["one"], "two": serves["two"]}} if is_known else {}),
        "spark": {"green-1": serves["green-1"]},
    }
    state = SiteState("process")
    state.apply(Assignment(site="process", epoch=3, units=[UnitAssignment(owner) for owner in owners]), 1)
    if drained:
        state.apply(Drain(site="process", instance=drained), 2)
    status = compose_status(settings_of(), found, [0, 0], members, {"process": state}, [], 1_000.0)
    replaced = msgspec.structs.replace(status.assignments["process"], **assignment or {})
    status = msgspec.structs.replace(status, assignments={"process": replaced})
    supervisors = [Supervisor("process", "host", "a", running, running)]
    given: dict[str, Any] = {"number": 5, "status": status, "trouble": "", "supervisors": supervisors}
    return Facts(**given | changes)


class Topic:
    """The audit topic. ``is_away``: whether it takes no records."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.values: list[tuple[bytes, int]] = []
        self.is_away = False

    def append(self, record: Record) -> None:
        """Append a record."""
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))  # noqa: SLF001 - the public name
        self.values.append((encode(record), round(1000 * self.clock.now_s)))

    def records(self) -> list[Record]:
        """Return all records."""
        return [record for value, _ in self.values if (record := decode(value)) is not None]


class MemoryLog:
    """See `control.actions.audit_log.AuditLog`."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._at = 0
        self.generation = 1
        self.trouble = "the audit topic has not been read yet"

    def read(self, _wait_s: float) -> list[Audited]:
        """See `AuditLog`."""
        threading.Event().wait(0.001)
        new = self._topic.values[self._at :]
        found = [(self._at + number, decode(value), at_ms) for number, (value, at_ms) in enumerate(new)]
        self._at += len(new)
        self.trouble = ""
        return [
            Audited(record, offset, at_ms, self.generation) for offset, record, at_ms in found if record is not None
        ]

    def read_again(self) -> None:
        """Read everything from the beginning, as after an error of Kafka."""
        self._at = 0

    def append(self, record: Record) -> None:
        """See `AuditLog`."""
        self._topic.append(record)

    def post(self, record: Record) -> None:
        """See `AuditLog`."""
        if not self._topic.is_away:
            self._topic.append(record)

    def prepare(self) -> None:
        """See `AuditLog`."""

    def close(self, _wait_s: float) -> None:
        """See `AuditLog`."""


def desk_with(topic: Topic, watcher: Any) -> Desk:
    """Return a desk with this audit topic and its clock."""
    open_log: Any = lambda *_: MemoryLog(topic)  # noqa: E731 - short
    return Desk(watcher, topic.clock, open_log)


class Office:
    """Several desks for one application. What is ordered ends when the test lets it end."""

    def __init__(self, monkeypatch: Any) -> None:
        self.clock = ManualClock()
        self.topic = Topic(self.clock)
        self.watcher: Any = SimpleNamespace(settings=settings_of(), facts=facts_of())
        self.performed: list[Order] = []
        self.means: list[Means] = []
        self.let_end = threading.Event()
        self.outcome: Callable[[], Outcome] = lambda: Outcome("done", "all units are at spark")
        monkeypatch.setattr(tasks_module, "perform", self._perform)

    def desk(self) -> Desk:
        """Return a desk that has read what is there."""
        made = desk_with(self.topic, self.watcher)
        made.turn()
        return made

    def log_of(self, desk: Desk) -> MemoryLog:
        """Return the audit log of a desk."""
        log: Any = desk._log  # noqa: SLF001 - the other end of what it was given
        assert isinstance(log, MemoryLog)
        return log

    def _perform(self, order: Order, means: Means) -> Outcome:
        self.performed.append(order)
        self.means.append(means)
        assert self.let_end.wait(30)
        return self.outcome()


def accept(desk: Desk, order: Order = MOVE, key: str = "k", by: str = "otto") -> Accepted:
    """Accept an order while the desk makes its turns in another thread."""
    return together(desk, lambda: desk.accept(order, key, by))[0]


def together(desk: Desk, *calls: Callable[[], Accepted], others: Sequence[Desk] = ()) -> list[Accepted]:
    """Make calls at the same time while the desks make their turns."""
    found: list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            found[number] = calls[number]()
        except Exception as error:  # noqa: BLE001 - raised again below
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for one in (desk, *others):
            one.turn()
        threads[0].join(0.01)
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


def ended(desk: Desk, number: int = -1, others: Sequence[Desk] = ()) -> Action:
    """Make turns until an action has ended."""

    def has_ended() -> bool:
        for one in (desk, *others):
            one.turn()
        return desk.actions()[number].ended_ms is not None

    wait_until(has_ended, "the action has ended")
    return desk.actions()[number]
