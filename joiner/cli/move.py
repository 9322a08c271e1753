"""``joiner move``: give the order, tell what happens, and judge by the checkpoints what came of it.

Nothing is lost where this program dies: its order lapses, and what was on its way arrives or is taken back without it.
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
from joiner.runtime.migration.protocol import RECLAIM_AFTER_S, RECLAIMED
from joiner.runtime.migration.request import Order, Step
from joiner.runtime.model import RESET_RUN, Checkpoint
from joiner.runtime.settings import JoinerSettings

_WAIT_S: Final = 0.1
_LOOK_S: Final = 1.0
"""From one look at the checkpoints to the next, for units that are on their way."""

_SETTLE_S: Final = RECLAIM_AFTER_S + 15.0
"""For units on their way: the source takes back what nobody claims, and that takes a claim and a replay."""

_ANSWER_S: Final = 5.0
"""For a word of whoever has the unit."""


def move(settings: JoinerSettings, to: str, wanted: list[int] | None, timeout_s: float, clock: Clock) -> int:
    """Move units (None: all) to a site; returns the exit status: 1 where one did not come there."""
    name = settings.application.name
    admin = make_admin(settings.kafka)
    if settings.state_topic not in topic_facts(admin, [settings.state_topic]):
        print(f"application {name!r} has never run: start a joiner, there is nothing to move")
        return 1
    every = range(settings.topics.partitions)
    wrong = sorted(set(wanted or []) - set(every))
    if wrong:
        print(f"there is no unit {', '.join(map(str, wrong))}: the units of {name!r} are 0 to {every[-1]}")
        return 2
    units = sorted(set(wanted)) if wanted is not None else list(every)
    with closing(Readers(settings, clock)) as readers:
        found = {unit: read_checkpoint(readers, unit) for unit in units}
    to_move = [unit for unit, checkpoint in found.items() if _is_to_move(unit, checkpoint, to)]
    impossible = any(checkpoint is None or checkpoint.run == RESET_RUN for checkpoint in found.values())
    if not to_move:
        print("nothing to do" if not impossible else f"start a joiner with --site {to} for what is nobody's")
        return 1 if impossible else 0
    began_s = clock.monotonic_s()

    def tell(text: str) -> None:
        print(f"{clock.monotonic_s() - began_s:7.3f} s  {text}", flush=True)

    order = carry_out(settings, to, to_move, timeout_s, clock, tell)
    status = _verdict(order, clock.monotonic_s() - began_s)
    return 1 if impossible else status


def carry_out(
    settings: JoinerSettings, to: str, units: list[int], timeout_s: float, clock: Clock, tell: Callable[[str], None]
) -> Order:
    """Give the order and wait until it is known what came of it; ``tell`` is given each step.

    The units are others' than of the site ``to``. Raises KafkaException, `broker.kafka.topics.TopicError`.
    """
    ensure_topics(make_admin(settings.kafka), application_topics(settings))
    with closing(Readers(settings, clock)) as readers:
        return _Move(readers, to, units, timeout_s, tell).run()


def _is_to_move(unit: int, checkpoint: Checkpoint | None, to: str) -> bool:
    if checkpoint is None:
        print(f"unit {unit}: was never begun, so nobody has it: start a joiner with --site {to}, which takes it")
        return False
    if checkpoint.run == RESET_RUN:
        print(f"unit {unit}: is nobody's since a reset: start a joiner with --site {to}, which takes it")
        return False
    if checkpoint.site == to:
        print(f"unit {unit}: is {checkpoint.owner} already, nothing to do")
        return False
    return True


class _Move:
    """One order, from its first request to the verdict."""

    def __init__(
        self, readers: Readers, to: str, units: list[int], timeout_s: float, tell: Callable[[str], None]
    ) -> None:
        self._readers, self._clock = readers, readers.clock
        self._tell = tell
        self._control = ControlLog(readers.settings)
        self._control.begin_now(self._clock)
        self._order = Order(uuid.uuid4().hex[:12], to, units, self._clock.monotonic_s() + timeout_s)
        self._look_s = 0.0
        # Since when it is looked what came of a unit.
        self._since_s: dict[int, float] = {}

    def run(self) -> Order:
        order = self._order
        units = ", ".join(map(str, order.units))
        self._tell(f"moving unit{'s' * (len(order.units) > 1)} {units} to {order.to} (move {order.move})")
        while not order.is_over:
            try:
                self._turn()
            except KeyboardInterrupt:
                self._tell("stopped: what is not released stays where it is")
                self._write(order.cancel("stopped before it was released"))
        self._control.close()
        return order

    def _turn(self) -> None:
        now_s = self._clock.monotonic_s()
        self._write(self._order.due(now_s))
        for record, at_ms in self._control.read(_WAIT_S):
            unit = self._order.hear(record, at_ms)
            if unit is not None:
                self._tell(f"unit {unit}: {self._told(unit)}")
        if self._order.underway and now_s >= self._look_s:
            self._look_s = now_s + _LOOK_S
            self._look(now_s)

    def _write(self, records: list[Record]) -> None:
        for record in records:
            self._control.write(record)
            for unit in record.units if isinstance(record, Cancelled) else ():
                self._tell(f"unit {unit}: {self._told(unit)}")

    def _look(self, now_s: float) -> None:
        """Judge by the log where no message came: whoever was to write it may have died."""
        for unit in self._order.underway:
            try:
                checkpoint = read_checkpoint(self._readers, unit)
            except KafkaException:
                continue
            if checkpoint is not None and self._judge(unit, checkpoint, now_s):
                self._tell(f"unit {unit}: {self._told(unit)}")

    def _judge(self, unit: int, checkpoint: Checkpoint, now_s: float) -> bool:
        """Whether the checkpoint, or the time that has passed, says what came of a unit."""
        order, one = self._order, self._order.units[unit]
        is_there = checkpoint.site == order.to
        if one.step is Step.READY and not is_there:
            return False  # to be released, or cancelled in time
        waited_s = now_s - self._since_s.setdefault(unit, now_s)
        if checkpoint.on_the_way is not None:
            if waited_s <= _SETTLE_S:
                return False
            why = f"it is {checkpoint.owner}: a joiner with --site {order.to} takes it as soon as it is started"
            order.finish(unit, Step.KEPT, why)
        elif is_there:
            if waited_s <= _ANSWER_S:
                return False  # it tells of itself with its first commit
            order.finish(unit, Step.MOVED, f"claimed by {checkpoint.instance}, which has not said that it goes on")
        elif one.released_ms:
            # The source says so itself, a moment after its claim.
            is_back = checkpoint.instance == one.source
            order.finish(unit, Step.KEPT, RECLAIMED if is_back else f"taken back by {checkpoint.instance}")
        elif waited_s <= _ANSWER_S:
            return False  # may be being released
        else:
            way_out = f"if it is gone, `joiner run --site {order.to} --force-claim` takes the unit"
            order.finish(unit, Step.KEPT, f"{checkpoint.owner} has not released it; {way_out}")
        return True

    def _told(self, unit: int) -> str:
        one = self._order.units[unit]
        match one.step:
            case Step.READY:
                return f"{self._order.to} ({one.target}) has built its state"
            case Step.RELEASED:
                return f"released by {one.source}" if one.source else "may have been released"
            case Step.MOVED if one.why:
                return one.why
            case Step.MOVED:
                pause = f", pause {one.pause_ms / 1000:.3f} s" if one.pause_ms is not None else ""
                return f"goes on at {self._order.to}{f' ({one.target})' if one.target else ''}{pause}"
            case Step.KEPT:
                return f"not moved: {one.why}"
            case _:
                return "asked for"


def _verdict(order: Order, took_s: float) -> int:
    units = order.units.values()
    moved = [one for one in units if one.step is Step.MOVED and not one.why]
    pauses = [one.pause_ms for one in moved if one.pause_ms is not None]
    longest = f", longest pause {max(pauses) / 1000:.3f} s" if pauses else ""
    if len(moved) == len(units):
        print(f"MOVED: all {len(units)} units are at {order.to}, after {took_s:.1f} s{longest}")
        return 0
    print(f"NOT MOVED, or not known to go on: {len(units) - len(moved)} of {len(units)} units, see above{longest}")
    return 1
