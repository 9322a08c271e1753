"""Carries out orders, each in a thread of its own."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

import joiner.runtime.control as control_records
from broker.wire.records import encode
from control.actions.audit import DONE, FAILED, WITHDRAWN
from control.actions.orders import Drain, Move, Order, ReleaseSilent, Scale
from control.actions.plan import OrderRefused, plan_watermark, progress, units_to_move
from joiner.cli.move import carry_out
from joiner.runtime.kafka.clients import describe, make_producer
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.migration.order import Order as MoveOrder
from joiner.runtime.migration.order import Step

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from control.facts.watcher import Watcher
    from joiner.runtime.clock import Clock

_LOOK_S: Final = 0.2
_REPEAT_S: Final = 3.0
"""After this time, an order without effect is written again, because it may be lost while Kafka is unreachable."""

_WRITE_S: Final = 10.0


class Outcome(NamedTuple):
    """How an action has ended: ``done``, ``failed`` or ``withdrawn``, and the outcome in words."""

    state: str
    text: str


class Means(NamedTuple):
    """What an action is carried out with. ``stop``: is set when the service stops. ``report``: takes each step."""

    watcher: Watcher
    clock: Clock
    stop: threading.Event
    report: Callable[[str], None]


def perform(order: Order, means: Means) -> Outcome:
    """Carry out an order and wait for its outcome. Errors of Kafka are outcomes as well."""
    try:
        match order:
            case Move():
                return _move(order, means)
            case ReleaseSilent():
                return _write_watermark(order, means)
            case Drain():
                record: control_records.MemberRecord = control_records.Drain(
                    site=order.site, instance=order.instance, drained=not order.undo
                )
                return _give(order, record, means)
            case Scale():
                record = control_records.Scale(site=order.site, instance=order.instance, processes=order.processes)
                return _give(order, record, means)
    except OrderRefused as error:
        return Outcome(FAILED, str(error))
    except KafkaException as error:
        return Outcome(FAILED, describe(error))


def _move(order: Move, means: Means) -> Outcome:
    watcher = means.watcher
    status = watcher.facts.status
    if status is None:
        raise OrderRefused("the application is not known to have run")
    units = units_to_move(order, status)
    moved = carry_out(watcher.settings, order.to, units, order.timeout_s, means.clock, means.report, means.stop.is_set)
    return _outcome_of(moved, is_stopped=means.stop.is_set())


def _outcome_of(moved: MoveOrder, *, is_stopped: bool) -> Outcome:
    units = moved.units
    there = [unit for unit, one in units.items() if one.step is Step.MOVED and not one.why]
    pauses = [one.pause_ms for one in units.values() if one.pause_ms is not None]
    longest = f"; longest pause {max(pauses) / 1000:.3f} s" if pauses else ""
    if len(there) == len(units):
        return Outcome(DONE, f"all {len(units)} units are at {moved.to}{longest}")
    rest = "; ".join(f"unit {unit}: {one.why}" for unit, one in units.items() if unit not in there)
    state = WITHDRAWN if is_stopped else FAILED
    return Outcome(state, f"{len(there)} of {len(units)} units are at {moved.to}{longest}; {rest}")


def _give(order: Drain | Scale, record: control_records.MemberRecord, means: Means) -> Outcome:
    """Write an order to the control topic, and wait until it is seen to be carried out."""
    clock, watcher = means.clock, means.watcher
    began_s = clock.monotonic_s()
    before, written_s = "", -_REPEAT_S
    with closing(ControlLog(watcher.settings)) as control:
        while not means.stop.is_set():
            now_s = clock.monotonic_s()
            found = progress(order, watcher.facts)
            if found.is_done and before:
                return Outcome(DONE, found.text)
            if now_s - began_s > order.timeout_s:
                return Outcome(FAILED, f"not done within {order.timeout_s:g} s: {found.text}; the order remains")
            if not before or now_s - written_s > _REPEAT_S:
                control.write(record)
                written_s = now_s
            if found.text != before:
                before = found.text
                means.report(found.text)
            means.stop.wait(_LOOK_S)
    return Outcome(WITHDRAWN, f"the service was stopped: {before}; the order remains")


def _write_watermark(order: ReleaseSilent, means: Means) -> Outcome:
    settings = means.watcher.settings
    topic, partitions, watermark, _ = plan_watermark(order, settings, round(means.clock.wall_s() * 1e9))
    producer = make_producer(settings.kafka, linger_ms=0, message_timeout_ms=round(1000 * _WRITE_S))
    errors: list[KafkaError] = []
    written: list[str] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is None:
            written.append(f"{message.topic()} [{message.partition()}] at {message.offset()}")
        else:
            errors.append(error)

    for partition in partitions:
        producer.produce(topic, encode(watermark), (order.thing or "").encode(), partition, on_delivery=note)
    producer.flush(2 * _WRITE_S)
    if len(written) == len(partitions):
        return Outcome(DONE, f"written to {', '.join(sorted(written))}")
    why = errors[0].str() if errors else "Kafka has not answered"
    return Outcome(
        FAILED,
        f"written to {len(written)} of {len(partitions)} partitions ({why}); it may be repeated, which changes nothing "
        "where it was written",
    )
