"""``joiner move``: orders units to be moved to another site, and reports each step and the outcome.

The runners report on the control topic. If a report does not arrive, the outcome is read from the unit's checkpoint. If
this program dies, nothing is lost: its order expires, and units that have already been released are claimed by the
target or reclaimed by the source.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Final

from confluent_kafka import KafkaException

from broker.kafka.topics import ensure_topics, topic_facts
from joiner.runtime.clock import Clock
from joiner.runtime.control import Cancelled, Record
from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import make_admin
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.topics import application_topics
from joiner.runtime.migration.order import Order, Step
from joiner.runtime.migration.protocol import RECLAIM_AFTER_S, RECLAIMED
from joiner.runtime.model import RESET_RUN, Checkpoint, UnitStopped
from joiner.runtime.settings import JoinerSettings

_WAIT_S: Final = 0.1
_CHECK_INTERVAL_S: Final = 1.0
"""How often to read the checkpoints of units that may be between two owners."""

_RECLAIM_TIMEOUT_S: Final = RECLAIM_AFTER_S + 15.0
"""How long to wait for a released unit to be claimed. Long enough for the source to reclaim it, including a replay."""

_REPORT_TIMEOUT_S: Final = 5.0
"""How long to wait for a unit's owner to report a step."""


def move(settings: JoinerSettings, to: str, requested: list[int] | None, timeout_s: float, clock: Clock) -> int:
    """Move the ``requested`` units (None: all) to the site ``to``. Return the exit status.

    The status is 0 if all units already belong to the site or are confirmed to run there, 2 if a requested unit does
    not exist, and 1 otherwise.
    """
    name = settings.application.name
    admin = make_admin(settings.kafka)
    if settings.state_topic not in topic_facts(admin, [settings.state_topic]):
        print(f"application {name!r} has never run, so there is nothing to move; start a joiner first")
        return 1
    existing = range(settings.topics.partitions)
    unknown = sorted(set(requested or []) - set(existing))
    if unknown:
        numbers = " or ".join(map(str, unknown))
        print(f"application {name!r} has no unit {numbers}; its units are 0 to {existing[-1]}")
        return 2
    units = sorted(set(requested)) if requested is not None else list(existing)
    with closing(Readers(settings, clock)) as readers:
        found = {unit: read_checkpoint(readers, unit) for unit in units}
    to_move = [unit for unit, checkpoint in found.items() if _is_to_move(unit, checkpoint, to)]
    has_unowned = any(checkpoint is None or checkpoint.run == RESET_RUN for checkpoint in found.values())
    if not to_move:
        unowned = f"some units have no owner; start a joiner with --site {to} to claim them"
        print(unowned if has_unowned else "nothing to do")
        return 1 if has_unowned else 0
    began_s = clock.monotonic_s()

    def report(text: str) -> None:
        print(f"{clock.monotonic_s() - began_s:7.3f} s  {text}", flush=True)

    order = carry_out(settings, to, to_move, timeout_s, clock, report)
    status = _print_outcome(order, clock.monotonic_s() - began_s)
    return 1 if has_unowned else status


def carry_out(
    settings: JoinerSettings,
    to: str,
    units: list[int],
    timeout_s: float,
    clock: Clock,
    report: Callable[[str], None],
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Order:
    """Write an order to move the units to the site ``to``, and wait until the outcome is known for every unit.

    The units must belong to other sites. ``report``: called with a line of text for each step. ``is_cancelled``:
    returns whether to withdraw the order for units that have not been released. Raises KafkaException and
    `broker.kafka.topics.TopicError`.
    """
    ensure_topics(make_admin(settings.kafka), application_topics(settings))
    with closing(Readers(settings, clock)) as readers:
        return _Move(readers, to, units, timeout_s, report, is_cancelled).run()


def _is_to_move(unit: int, checkpoint: Checkpoint | None, to: str) -> bool:
    if checkpoint is None:
        print(f"unit {unit}: has no owner, because it has never run; start a joiner with --site {to} to claim it")
        return False
    if checkpoint.run == RESET_RUN:
        print(f"unit {unit}: has had no owner since a reset; start a joiner with --site {to} to claim it")
        return False
    if checkpoint.site == to:
        print(f"unit {unit}: already owned by {checkpoint.owner}; nothing to do")
        return False
    return True


class _Move:
    """Carries out one order to move units, from its first request until the outcome is known for every unit."""

    def __init__(
        self,
        readers: Readers,
        to: str,
        units: list[int],
        timeout_s: float,
        report: Callable[[str], None],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._readers, self._clock = readers, readers.clock
        self._report, self._is_cancelled = report, is_cancelled
        self._control = ControlLog(readers.settings)
        self._control.begin_now(self._clock)
        self._order = Order(uuid.uuid4().hex[:12], to, units, self._clock.monotonic_s() + timeout_s)
        self._is_withdrawn = False
        self._next_check_s = 0.0
        # The current owner of each unit, and when it was first seen, so that a target that claims late still gets its
        # full time to report.
        self._seen_since_s: dict[int, tuple[str, float]] = {}

    def run(self) -> Order:
        order = self._order
        units = ", ".join(map(str, order.units))
        self._report(f"moving unit{'s' * (len(order.units) > 1)} {units} to {order.to} (move {order.move})")
        while not order.is_over:
            try:
                self._poll()
            except KeyboardInterrupt:
                self._withdraw()
            if self._is_cancelled() and not self._is_withdrawn:
                self._withdraw()
        self._control.close()
        return order

    def _withdraw(self) -> None:
        self._is_withdrawn = True
        self._report("stopped: units that have not been released stay at their current site")
        self._write(self._order.cancel("stopped before it was released"))

    def _poll(self) -> None:
        now_s = self._clock.monotonic_s()
        self._write(self._order.due(now_s))
        for record, at_ms in self._control.read(_WAIT_S):
            unit = self._order.hear(record, at_ms)
            if unit is not None:
                self._report_step(unit)
        if self._order.underway and now_s >= self._next_check_s:
            self._next_check_s = now_s + _CHECK_INTERVAL_S
            self._check_underway(now_s)

    def _write(self, records: list[Record]) -> None:
        for record in records:
            self._control.write(record)
            for unit in record.units if isinstance(record, Cancelled) else ():
                self._report_step(unit)

    def _check_underway(self, now_s: float) -> None:
        """Read the checkpoints of units that may be between two owners, in case the reporting process has died."""
        for unit in self._order.underway:
            try:
                checkpoint = read_checkpoint(self._readers, unit)
            except KafkaException:
                continue
            except UnitStopped as error:
                # The checkpoint may be from a later release, for example. The target may still report.
                if self._order.units[unit].step is not Step.RELEASED:
                    continue
                if self._seen_for_s(unit, "", now_s) > _RECLAIM_TIMEOUT_S:
                    why = f"it is not known whether it runs at {self._order.to}: {error}"
                    self._order.finish(unit, Step.MOVED, why)
                    self._report_step(unit)
                continue
            if checkpoint is not None and self._finish(unit, checkpoint, now_s):
                self._report_step(unit)

    def _finish(self, unit: int, checkpoint: Checkpoint, now_s: float) -> bool:
        """Set a unit's outcome if its checkpoint or the elapsed time determines it. Return whether it is now set."""
        order, one = self._order, self._order.units[unit]
        is_at_target = checkpoint.site == order.to
        if one.step is Step.READY and not is_at_target:
            return False  # it will be released, or the order will be cancelled
        waited_s = self._seen_for_s(unit, checkpoint.owner, now_s)
        if checkpoint.on_the_way is not None:
            if waited_s <= _RECLAIM_TIMEOUT_S:
                return False
            why = f"no runner has claimed it; start a joiner with --site {order.to} to claim it"
            order.finish(unit, Step.KEPT, why)
        elif is_at_target:
            if waited_s <= _REPORT_TIMEOUT_S:
                return False  # the target reports with its first commit
            order.finish(unit, Step.MOVED, f"claimed by {checkpoint.instance}, but not confirmed to be running")
        elif one.released_ms:
            # The source may have reclaimed the unit without having reported that yet.
            is_reclaimed = checkpoint.instance == one.source
            order.finish(unit, Step.KEPT, RECLAIMED if is_reclaimed else f"claimed by {checkpoint.instance}")
        elif waited_s <= _REPORT_TIMEOUT_S:
            return False  # the release may be in progress
        else:
            way_out = f"if that runner has stopped, run `joiner run --site {order.to} --force-claim` to claim the unit"
            order.finish(unit, Step.KEPT, f"{checkpoint.owner} has not released it; {way_out}")
        return True

    def _seen_for_s(self, unit: int, owner: str, now_s: float) -> float:
        """Return how long the unit has been seen with this owner. ``owner``: empty if it is not known."""
        seen = self._seen_since_s.get(unit)
        if seen is None or seen[0] != owner:
            self._seen_since_s[unit] = seen = owner, now_s
        return now_s - seen[1]

    def _report_step(self, unit: int) -> None:
        self._report(f"unit {unit}: {self._describe(unit)}")

    def _describe(self, unit: int) -> str:
        one = self._order.units[unit]
        match one.step:
            case Step.READY:
                return f"state built at {self._order.to} ({one.target})"
            case Step.RELEASED:
                return f"released by {one.source}" if one.source else "possibly released"
            case Step.MOVED if one.why:
                return one.why
            case Step.MOVED:
                pause = f", pause {one.pause_ms / 1000:.3f} s" if one.pause_ms is not None else ""
                return f"running at {self._order.to}{f' ({one.target})' if one.target else ''}{pause}"
            case Step.KEPT:
                return f"not moved: {one.why}"
            case _:
                return "requested"


def _print_outcome(order: Order, took_s: float) -> int:
    units = order.units.values()
    moved = [one for one in units if one.step is Step.MOVED and not one.why]
    pauses = [one.pause_ms for one in moved if one.pause_ms is not None]
    longest = f", longest pause {max(pauses) / 1000:.3f} s" if pauses else ""
    if len(moved) == len(units):
        print(f"MOVED: all {len(units)} units are at {order.to}, after {took_s:.1f} s{longest}")
        return 0
    print(f"FAILED or unconfirmed: {len(units) - len(moved)} of {len(units)} units; see above{longest}")
    return 1
