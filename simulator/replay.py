"""The replay command: reads the settings and the recording, publishes its messages, and reports the outcome.

`main` is the entry point. Other modules provide the parts: `settings`; `recording` (order and times of the messages);
`pacing` (when to send); `mqtt` (how to send); and `progress`.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from broker.commandline import Stop, imports_of, signals_to
from simulator.pacing import pacer_for
from simulator.progress import Progress
from simulator.settings import NO_EVENTS, Settings, SettingsError, read_settings

with imports_of("simulator"):
    from broker.times import UNIT_NS
    from simulator.mqtt.publishing import BrokerUnavailableError, Publisher
    from simulator.recording import (
        Message,
        Recording,
        Selection,
        SortedRecording,
        StreamedRecording,
        Survey,
        replay_messages,
        shown,
    )

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simulator.pacing import Pacer

TURN_NS_MAX = 100_000_000
"""Longest wait for the network. After that, signals are checked and the display is updated."""
FAREWELL_NS = 2_000_000_000
"""How long to wait for outstanding acknowledgements after a signal. A shutdown must take less than 5 s in all."""


class Journal:
    """Writes a line `id<TAB>ns` for each message: the event's id, and the wall-clock time when it was sent."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def note(self, message: Message) -> None:
        """Write the journal line for a message that is about to be sent."""
        if self._file is not None:
            event_id = message.id if message.id.isprintable() else repr(message.id)
            self._file.write(f"{event_id}\t{time.time_ns()}\n")


class Replay:
    """A single replay over a connection that is already open.

    `invalid` is the number of invalid lines that were sent. `elapsed_ns` is the duration of the replay, including the
    wait for the last acknowledgements.
    """

    def __init__(
        self,
        messages: Iterator[Message],
        publisher: Publisher,
        pacer: Pacer,
        progress: Progress,
        journal: Journal,
        stop: Stop,
    ) -> None:
        self._messages = messages
        self._publisher = publisher
        self._pacer = pacer
        self._progress = progress
        self._journal = journal
        self._stop = stop
        self._start_ns = 0
        self.invalid = 0
        self.elapsed_ns = 0

    def run(self) -> None:
        """Send all messages and wait for their acknowledgements. After a signal, stop sending and wait only briefly."""
        self._start_ns = time.monotonic_ns()
        while self._send_burst() and not self._stop.requested:
            self._turn()
        self._await_acknowledgements()
        self.elapsed_ns = time.monotonic_ns() - self._start_ns

    def _send_burst(self) -> bool:
        """Send the messages that are due, but no more than the window allows. Return False if no messages are left."""
        allowed = min(self._pacer.due(time.monotonic_ns()), self._publisher.room)
        for _ in range(allowed):
            message = next(self._messages, None)
            if message is None:
                return False
            self._pacer.take(1)
            self._journal.note(message)
            self.invalid += message.invalid
            self._publisher.send(message.payload)
        return True

    def _turn(self) -> None:
        wait_ns = TURN_NS_MAX
        if self._publisher.room:
            wait_ns = min(wait_ns, self._pacer.wait_ns(time.monotonic_ns()))
        self._publisher.turn(wait_ns / 1e9)
        tally = self._publisher.tally
        self._progress.show(tally.sent, tally.acknowledged)

    def _await_acknowledgements(self) -> None:
        until_ns = None
        while self._publisher.unacknowledged:
            if self._stop.requested:
                now_ns = time.monotonic_ns()
                until_ns = now_ns + FAREWELL_NS if until_ns is None else until_ns
                if not self._publisher.connected or now_ns >= until_ns:
                    return
            self._publisher.turn(TURN_NS_MAX / 1e9)
            tally = self._publisher.tally
            self._progress.show(tally.sent, tally.acknowledged)


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Run the command and return its exit status.

    The status is 0 if everything was sent and acknowledged, 1 if not, and 2 if the settings are invalid. It is
    `NO_EVENTS` if everything was sent and acknowledged, but some lines were not events.
    """
    try:
        settings = read_settings(sys.argv[1:] if arguments is None else arguments, environment)
    except SettingsError as error:
        lines = "".join(f"  {error}\n" for error in error.errors)
        sys.stderr.write(f"simulator: invalid settings; nothing was sent\n{lines}")
        return 2
    stop = Stop()
    try:
        with signals_to(stop):
            return _replay(settings, stop)
    except BrokerUnavailableError as error:
        sys.stderr.write(f"simulator: {error}\n")
    except OSError as error:
        sys.stderr.write(f"simulator: {error}\n")
    except KeyboardInterrupt:
        sys.stderr.write("simulator: stopped at once, without waiting for acknowledgements\n")
    return 1


def _replay(settings: Settings, stop: Stop) -> int:
    recording, survey = _open_recording(settings)
    total = None if settings.rounds is None else survey.lines * settings.rounds
    progress = Progress(sys.stderr, total)
    if survey.first_invalid is not None:
        number, why = survey.first_invalid
        progress.write_line(
            f"{survey.invalid:,} of {survey.lines:,} lines are not events; they are sent unchanged, and the exit "
            f"status will be {NO_EVENTS} even if all are acknowledged. "
            f"The first is line {settings.skip_first + number}: {shown(why)}"
        )
    if not survey.lines:
        progress.write_line(f"no lines to send in {settings.events}")
    publisher = Publisher(settings.link, progress.write_line)
    publisher.connect(settings.connect_timeout_s, stop.is_requested)
    with _open_journal(settings) as file:
        messages = replay_messages(
            recording,
            rounds=settings.rounds,
            shift_ns=shift_ns(settings.rebase, survey, time.time_ns(), settings.time_unit),
            round_ns=survey.round_ns(settings.time_unit),
            time_unit=settings.time_unit,
        )
        replay = Replay(messages, publisher, pacer_for(settings.rate_per_s), progress, Journal(file), stop)
        try:
            replay.run()
        finally:
            progress.end()
            publisher.close()
    return _report(settings, publisher, replay, stop)


def shift_ns(rebase: str | None, survey: Survey, now_ns: int, time_unit: str) -> int:
    """Return how far to shift all times, in ns.

    `rebase` says which event is moved to `now_ns`: the first (`now`), the last (`end`), or none (None). The shift is
    rounded down to whole `time_unit`s, so that integer times stay integers.
    """
    anchor_ns = {None: None, "now": survey.first_ns, "end": survey.last_ns}[rebase]
    return 0 if anchor_ns is None else (now_ns - anchor_ns) // UNIT_NS[time_unit] * UNIT_NS[time_unit]


def _open_recording(settings: Settings) -> tuple[Recording, Survey]:
    selection = Selection(settings.skip_first, settings.read_first)
    kind = StreamedRecording if settings.as_recorded else SortedRecording
    recording = kind(settings.events, selection, settings.time_unit)
    return recording, recording.survey()


def _report(settings: Settings, publisher: Publisher, replay: Replay, stop: Stop) -> int:
    tally = publisher.tally
    lost = publisher.unacknowledged
    rate = tally.acknowledged * 1_000_000_000 // max(1, replay.elapsed_ns)
    parts = [
        f"{tally.sent:,} sent",
        f"{tally.acknowledged:,} acknowledged",
        f"QoS {settings.link.qos}",
        f"{replay.elapsed_ns // 1_000_000 / 1000:.3f} s",
        f"{rate:,} messages/s",
    ]
    for count, text in (
        (lost, "unacknowledged"),
        (tally.refused, "refused"),
        (replay.invalid, "not events, sent unchanged"),
        (tally.reconnections, "reconnections"),
        (tally.resent, "sent again"),
    ):
        if count:
            parts.append(f"{count:,} {text}")
    if settings.link.qos and publisher.window < settings.link.in_flight_max:
        parts.append(f"the broker allows {publisher.window} in flight")
    sys.stdout.write(f"simulator: {'stopped, ' if stop.requested else ''}{', '.join(parts)}\n")
    if lost or tally.refused:
        return 1
    return NO_EVENTS if replay.invalid else 0


@contextmanager
def _open_journal(settings: Settings) -> Iterator[TextIO | None]:
    if settings.journal is None:
        yield None
        return
    with settings.journal.open("a", encoding="utf-8") as file:
        yield file
