"""Carries out orders, each in its own thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

import joiner.runtime.control as control_records
from broker.kafka.topics import TopicError, topic_facts
from broker.wire.records import encode as encode_message
from control.actions.audit import DONE, FAILED, INTERRUPTED, WITHDRAWN
from control.actions.orders import (
    Drain,
    Move,
    Order,
    Pin,
    PutRecordsBack,
    ReleaseSilent,
    Retry,
    Scale,
    Standbys,
    StandingOrder,
)
from control.actions.plan import is_in_force, plan_watermark, progress, units_to_move
from control.actions.reinjection import PutBackError, put_back
from joiner.cli.move import carry_out
from joiner.runtime.control import encode
from joiner.runtime.kafka.clients import describe, flush, make_admin, make_producer
from joiner.runtime.membership.ordering import Ordering, OrderRefused
from joiner.runtime.migration.order import Order as MoveOrder
from joiner.runtime.migration.order import Step
from joiner.runtime.model import UnitStopped

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from broker.settings import KafkaSettings
    from control.facts.watcher import Watcher
    from joiner.runtime.clock import Clock

_LOOK_S: Final = 0.2
_WRITE_S: Final = 10.0
_REASONS_MAX: Final = 10


class Outcome(NamedTuple):
    """How an action ended: ``done``, ``failed``, ``withdrawn`` or ``interrupted``, and the outcome in words."""

    state: str
    text: str


class Outgoing(NamedTuple):
    """A message to write."""

    topic: str
    partition: int
    key: bytes
    value: bytes


class Means(NamedTuple):
    """What is needed to carry out an action.

    ``by``: the user who gave the order. ``stop``: set when the service stops. ``report``: called with each step.
    """

    by: str
    watcher: Watcher
    clock: Clock
    stop: threading.Event
    report: Callable[[str], None]


def perform(order: Order, means: Means) -> Outcome:
    """Carry out an order and wait for its outcome. Errors from Kafka and the application are outcomes too."""
    try:
        match order:
            case Move():
                outcome = _move(order, means)
            case ReleaseSilent():
                outcome = _write_watermark(order, means)
            case PutRecordsBack():
                outcome = _put_back(order, means)
            case Retry():
                outcome = _retry(order, means)
            case Drain() | Scale() | Pin() | Standbys():
                outcome = _give(order, means)
    except (OrderRefused, PutBackError, TopicError, UnitStopped) as error:
        return Outcome(FAILED, str(error))
    except (KafkaException, BufferError) as error:
        return Outcome(FAILED, describe(error))
    return outcome


def _move(order: Move, means: Means) -> Outcome:
    watcher = means.watcher
    status = watcher.facts.status
    if status is None:
        raise OrderRefused("the application is not known to have run")
    to_move = units_to_move(order, status)
    moved = carry_out(
        watcher.settings, order.to, to_move.units, order.timeout_s, means.clock, means.report, means.stop.is_set
    )
    return _outcome_of(moved, to_move.without_owner, is_stopped=means.stop.is_set())


def _outcome_of(moved: MoveOrder, without_owner: list[int], *, is_stopped: bool) -> Outcome:
    units = moved.units
    there = [unit for unit, one in units.items() if one.step is Step.MOVED and not one.why]
    pauses = [one.pause_ms for one in units.values() if one.pause_ms is not None]
    longest = f"; longest pause {max(pauses) / 1000:.3f} s" if pauses else ""
    rest = [f"unit {unit}: {one.why}" for unit, one in units.items() if unit not in there]
    rest += [f"unit {unit}: not moved, because it has no owner" for unit in without_owner]
    if not rest:
        return Outcome(DONE, f"all {len(units)} units are at {moved.to}{longest}")
    state = WITHDRAWN if is_stopped else FAILED
    return Outcome(state, f"{len(there)} of {len(units)} units are at {moved.to}{longest}; {'; '.join(rest)}")


def _retry(order: Retry, means: Means) -> Outcome:
    stop = means.stop.is_set
    ordering = Ordering(means.watcher.settings, order.site, order.timeout_s, means.clock, means.report, stop)
    found = ordering.retry(order.unit)
    return Outcome(DONE if found.is_reached else INTERRUPTED if stop() else FAILED, found.text)


def _record_of(order: StandingOrder) -> control_records.MemberRecord:
    """Return the control topic record that passes an order on to the instances of a site."""
    site = order.site
    match order:
        case Drain(instance=instance, undo=undo):
            return control_records.Drain(site=site, instance=instance, drained=not undo)
        case Scale(instance=instance, processes=processes):
            return control_records.Scale(site=site, instance=instance, processes=processes)
        case Pin(unit=unit, instance=owner):
            return control_records.Pin(site=site, unit=unit, instance=owner or "")
        case Standbys(count=count):
            return control_records.Standbys(site=site, count=count)


def _give(order: StandingOrder, means: Means) -> Outcome:
    """Write an order to the control topic, and wait until the facts show that it was carried out."""
    clock, watcher = means.clock, means.watcher
    if means.stop.is_set():
        return Outcome(WITHDRAWN, "the service was stopped: nothing was done")
    began_s, text, was_in_force = clock.monotonic_s(), "", False
    value = encode(_record_of(order))
    written, why = _write(watcher.settings.kafka, [Outgoing(watcher.settings.control_topic, 0, b"", value)])
    if not written:
        return Outcome(FAILED, f"the order may not have been written: {why}; if it has no effect, order it again")
    while not means.stop.wait(_LOOK_S):
        facts = watcher.facts
        found, in_force = progress(order, facts), is_in_force(order, facts)
        if found.is_done:
            return Outcome(DONE, found.text)
        is_late = clock.monotonic_s() - began_s > order.timeout_s
        if was_in_force and in_force is False:
            why = "the order is no longer in force: another order, or a restart of the instance, has replaced it"
            return Outcome(FAILED, why)
        if found.is_in_vain or is_late:
            late = "" if found.is_in_vain else f"not done within {order.timeout_s:g} s: "
            remains = "it is no longer in force" if in_force is False else "the order remains in force"
            return Outcome(FAILED, f"{late}{found.text}; {remains}")
        was_in_force = was_in_force or in_force is True
        if found.text != text:
            text = found.text
            means.report(text)
    return Outcome(INTERRUPTED, f"the service was stopped while it waited: {text}; the order remains in force")


def _write_watermark(order: ReleaseSilent, means: Means) -> Outcome:
    settings = means.watcher.settings
    topic, partitions, watermark, _ = plan_watermark(order, settings, round(means.clock.wall_s() * 1e9))
    # A producer would create a missing topic with the broker's defaults.
    facts = topic_facts(make_admin(settings.kafka), [topic], _WRITE_S).get(topic)
    if facts is None or facts.partitions != settings.topics.partitions:
        raise OrderRefused(f"{topic} does not have topics.partitions = {settings.topics.partitions} partitions")
    key, value = (order.thing or "").encode(), encode_message(watermark)
    written, why = _write(settings.kafka, [Outgoing(topic, partition, key, value) for partition in partitions])
    if len(written) == len(partitions):
        return Outcome(DONE, f"written to {', '.join(sorted(written))}")
    return Outcome(
        FAILED,
        f"written to {len(written)} of {len(partitions)} partitions ({why}); it may be repeated, which changes nothing "
        "where it was written",
    )


def _put_back(order: PutRecordsBack, means: Means) -> Outcome:
    value = None if order.value is None else order.value.encode()
    settings = means.watcher.settings
    outcomes = put_back(settings, order.dead_letters, means.by, value, again=order.again, clock=means.clock)
    done = sum(one.is_done for one in outcomes)
    reasons = [f"{one.partition}/{one.offset}: {one.reason}" for one in outcomes if not one.is_done]
    places = sorted({f"{one.to_topic} [{one.to_partition}]" for one in outcomes if one.is_done})
    where = f" into {', '.join(places)}" if places else ""
    text = f"{done} of {len(outcomes)} records were put back{where}"
    if not reasons:
        return Outcome(DONE, text)
    shown = "; ".join(reasons[:_REASONS_MAX])
    return Outcome(FAILED, f"{text}; {shown}{'; ...' if len(reasons) > _REASONS_MAX else ''}")


def _write(kafka: KafkaSettings, messages: list[Outgoing]) -> tuple[list[str], str]:
    """Write messages. Return the places of the acknowledged ones, and why the others may not have been written."""
    producer = make_producer(kafka, linger_ms=0, message_timeout_ms=round(1000 * _WRITE_S))
    errors: list[KafkaError] = []
    written: list[str] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is None:
            written.append(f"{message.topic()} [{message.partition()}] at {message.offset()}")
        else:
            errors.append(error)

    for topic, partition, key, value in messages:
        producer.produce(topic, value, key, partition, on_delivery=note)
    flush(producer, 2 * _WRITE_S)
    return written, errors[0].str() if errors else "Kafka has not answered"
