"""Reports which units a runner cannot serve, and why, in the control topic. ``joiner status`` shows the reports.

A runner repeats each report for as long as it applies, so an outdated report comes from a runner that has stopped.
Reports are informational: no runner acts on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from confluent_kafka import TopicPartition

from joiner.runtime.control import FORMAT_VERSION, NotServed
from joiner.runtime.kafka.clients import TIMEOUT_S, log_range, make_reader, read_to_end

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.ownership.eligibility import Claimant
    from joiner.runtime.ownership.retry_policy import Obstacle
    from joiner.runtime.settings import JoinerSettings

REPEAT_S: Final = 10.0

LASTS_S: Final = 3 * REPEAT_S
"""A report expires if it has not been repeated for this long."""

_FIRST_S: Final = 2.0
"""An obstacle is reported only after it has lasted this long."""

_log = logging.getLogger(__name__)


class UnitReports:
    """Reports why a runner's units are not being served. Not thread-safe. The pool's threads write the reports."""

    def __init__(self, claimant: Claimant, pool: Executor, write: Callable[[NotServed], None], clock: Clock) -> None:
        """``write`` may block."""
        self._claimant, self._pool, self._write, self._clock = claimant, pool, write, clock
        self._said: dict[int, tuple[str, float]] = {}
        self._writing: Future[None] | None = None

    def poll(self, obstacles: Mapping[int, Obstacle]) -> None:
        """Report new and resolved obstacles, and repeat the reports of obstacles that persist."""
        if self._writing is not None and not self._writing.done():
            return
        now_s = self._clock.monotonic_s()
        notices = [self._notice(number, None) for number in self._said.keys() - obstacles.keys()]
        self._said = {number: said for number, said in self._said.items() if number in obstacles}
        for number, obstacle in obstacles.items():
            why, said_s = self._said.get(number, ("", 0.0))
            if obstacle.lasts_s >= _FIRST_S and (why != obstacle.why or now_s - said_s >= REPEAT_S):
                self._said[number] = obstacle.why, now_s
                notices.append(self._notice(number, obstacle))
        if notices:
            self._writing = self._pool.submit(self._write_all, notices)

    def _notice(self, number: int, obstacle: Obstacle | None) -> NotServed:
        over = NotServed(unit=number, instance=self._claimant.instance, site=self._claimant.site, why="")
        if obstacle is None:
            return over
        lasts_ms = round(1000 * obstacle.lasts_s)
        retry_ms = None if obstacle.retry_s is None else round(1000 * obstacle.retry_s)
        return msgspec.structs.replace(over, why=obstacle.why, lasts_ms=lasts_ms, retry_ms=retry_ms)

    def _write_all(self, notices: list[NotServed]) -> None:
        for notice in notices:
            self._write(notice)


class Report(NamedTuple):
    """A report that a runner cannot serve a unit, and its append time in ms since the epoch."""

    notice: NotServed
    at_ms: int

    def __str__(self) -> str:
        """Return the report as a line of text."""
        notice, at_ms = self
        since = f"{_moment(at_ms - notice.lasts_ms):%Y-%m-%dT%H:%M:%SZ}"
        said = f"{_moment(at_ms):%H:%M:%SZ}"
        then = "failed" if notice.retry_ms is None else f"retried {notice.retry_ms / 1000:.0f} s later"
        who = f"{notice.site} {notice.instance}"
        return f"unit {notice.unit}: not served by {who} since {since} (reported at {said}, {then}): {notice.why}"


def read_notices(settings: JoinerSettings, clock: Clock) -> list[str]:
    """Return the current reports, one line per unit and runner. Raises KafkaException if a request to Kafka fails."""
    return [str(report) for report in read_reports(settings, clock)]


def read_reports(settings: JoinerSettings, clock: Clock) -> list[Report]:
    """Return the current reports, one per unit and runner. Raises KafkaException if a request to Kafka fails."""
    now_ms = round(1000 * clock.wall_s())
    with closing(make_reader(settings.kafka, settings.application.name)) as consumer:
        since = TopicPartition(settings.control_topic, 0, now_ms - round(1000 * LASTS_S))
        (place,) = consumer.offsets_for_times([since], TIMEOUT_S)
        _, end = log_range(consumer, settings.control_topic, 0)
        if not 0 <= place.offset < end:
            return []
        messages = read_to_end(consumer, clock, settings.control_topic, 0, place.offset, end)
        return _current((message.value(), int(message.timestamp()[1])) for message in messages)


def describe(records: Iterable[tuple[bytes | None, int]]) -> list[str]:
    """Return one line per unserved unit and runner. ``records``: control records with their append times in ms."""
    return [str(report) for report in _current(records)]


def _current(records: Iterable[tuple[bytes | None, int]]) -> list[Report]:
    newest: dict[tuple[int, str, str], Report] = {}
    for value, at_ms in records:
        notice = decode(value)
        if notice is not None:
            newest[notice.unit, notice.site, notice.instance] = Report(notice, at_ms)
    return [report for _, report in sorted(newest.items(), key=lambda one: one[0]) if report.notice.why]


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC)


def decode(value: bytes | None) -> NotServed | None:
    """Decode a report. Return None if the record is not a report, or is in a newer format."""
    try:
        notice = _decoder.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return notice if notice.format <= FORMAT_VERSION else None


_decoder = msgspec.json.Decoder(NotServed)
