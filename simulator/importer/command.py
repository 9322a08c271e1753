"""The ``lsb-import`` command: writes the events of a file to the data topic, for those who have no MQTT broker.

Each event becomes what it would become if the simulator sent it and the connector received it: a record for each
quantity, and a dead letter for each part that cannot be used.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from broker.commandline import Stop, imports_of, leave, signals_to, tune_gc, version_of

with imports_of("lsb-import"):
    from confluent_kafka import KafkaException

    from broker.kafka.producer import DeliveryError
    from broker.kafka.topics import TopicError
    from broker.logs import set_up_logs
    from broker.settings import SettingsError, load_settings
    from broker.times import iso_text
    from connector.formats.events import NOT_AN_OBJECT, Parser
    from connector.forwarding import Forwarder
    from connector.settings import Settings
    from simulator.progress import Progress
    from simulator.recording import Selection, SortedRecording, StreamedRecording, shown
    from simulator.settings import readable_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from simulator.recording import Recording, Survey

NAME: Final = "lsb-import"

EXAMPLES: Final = """\
examples:
  lsb-import                                  events.json to the topic and the Kafka that ./lsb.toml names
  lsb-import press.json --config plant.toml   another file, with other settings
  lsb-import big.json --as-recorded           the file's own order instead of event-time order

Exit status: 0 everything is in Kafka, 1 not everything is, 2 nothing was written because of invalid settings or because
the file has no events, 3 like 0, but parts of the file cannot be used and became dead letters."""

REJECTED: Final = 3
"""Exit status if everything is in Kafka, but some of it as dead letters."""

_BLOCK_LINES: Final = 500
_BLOCK_BYTES: Final = 256 * 1024
"""How much is sent between two looks at Kafka's confirmations. An event may have many times its size in Kafka."""

_TRIED: Final = 1_000
"""How many lines are tried before anything is written. If no record comes out of them, it is the wrong kind of file."""

_LARGE_BYTES: Final = 64 * 1024 * 1024
"""The size of a file that takes seconds to read."""

_WAIT_S: Final = 0.1
_FAREWELL_S: Final = 2.0
"""How long to wait for Kafka's confirmations after a signal."""

_AGAIN: Final = "import the file again to complete it: no pair is joined twice"

_log = logging.getLogger(__name__)


class Import:
    """Forwards lines to Kafka. ``sent``, ``written``: how many have been sent, and how many are in Kafka entirely.

    ``records``: the number of records sent. ``rejected``: the number of dead letters, the first one with the reason
    ``first_rejected``.
    """

    def __init__(self, forwarder: Forwarder, source: str, progress: Progress, stop: Stop) -> None:
        """``source``: where the lines come from, for their dead letters."""
        self.sent = self.written = self.records = self.rejected = 0
        self.first_rejected = ""
        self._forwarder, self._source = forwarder, source
        self._progress, self._stop = progress, stop

    def run(self, lines: Iterable[bytes]) -> None:
        """Forward the lines, and wait until all are in Kafka. After a signal, forward no more and wait only briefly.

        Raises `broker.kafka.producer.DeliveryError`, and KafkaException if the Kafka client has failed.
        """
        # The ledger does not return 0.
        numbered = enumerate(lines, start=1)
        while not self._stop.requested and (block := [*_next_block(numbered)]):
            self.sent += len(block)
            for parsed in self._forwarder.accept((self._source, line, number) for number, line in block):
                self.records += len(parsed.records)
                self.rejected += len(parsed.refusals)
                if parsed.refusals and not self.first_rejected:
                    self.first_rejected = parsed.refusals[0].reason
            self._note_written(0)
            while self._forwarder.ledger.is_full and not self._stop.requested:
                self._note_written(_WAIT_S)
        self._finish()

    def _finish(self) -> None:
        until_s = None
        while self.written < self.sent:
            if self._stop.requested:
                now_s = time.monotonic()
                until_s = now_s + _FAREWELL_S if until_s is None else until_s
                if now_s >= until_s:
                    return
            self._forwarder.flush(_WAIT_S)
            self._note_written(0)

    def _note_written(self, wait_s: float) -> None:
        self._forwarder.poll(wait_s)
        self.written += len(self._forwarder.ledger.release())
        self._progress.show(self.sent, self.written)


def _next_block(numbered: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    size_bytes = 0
    for number, line in islice(numbered, _BLOCK_LINES):
        yield number, line
        size_bytes += len(line)
        if size_bytes >= _BLOCK_BYTES:
            return


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit."""
    leave(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status. Invalid arguments exit with status 2."""
    given = import_arguments().parse_args(arguments)
    set_up_logs("debug" if given.verbose else "warning")
    try:
        with signals_to(signal.default_int_handler):
            settings = load_settings(Settings, given.config)
            recording, survey = _read(given, settings)
            why = _why_unusable(recording, settings)
    except SettingsError as error:
        return _failed(f"invalid settings; nothing was written\n{error}", 2)
    except OSError as error:
        return _failed(f"{error}; nothing was written", 2)
    except KeyboardInterrupt:
        return _failed("stopped; nothing was written")
    if why:
        return _failed(f"{given.events}: {why}; nothing was written", 2)
    tune_gc()
    stop = Stop()
    with signals_to(stop):
        return _import(given, settings, recording, survey, stop)


def _read(given: argparse.Namespace, settings: Settings) -> tuple[Recording, Survey]:
    size_bytes = given.events.stat().st_size
    if size_bytes > _LARGE_BYTES:
        print(f"{NAME}: reading {given.events}, {size_bytes / 1e6:,.0f} MB", file=sys.stderr)
    kind = StreamedRecording if given.as_recorded else SortedRecording
    recording = kind(given.events, Selection(given.skip_first, given.read_first), settings.events.time_unit)
    return recording, recording.survey()


def _why_unusable(recording: Recording, settings: Settings) -> str:
    """Return why this is not a file of events, or an empty string if one of its first lines is an event."""
    parser = Parser(settings.events.time_unit, settings.events.event_bytes_max)
    tried, reason = 0, ""
    for line in islice(recording, _TRIED):
        parsed = parser.parse(line)
        if parsed.records:
            return ""
        tried, reason = tried + 1, reason or parsed.refusals[0].reason
    if not tried:
        return "no lines are selected"
    is_other = reason.startswith(NOT_AN_OBJECT)
    how_to = "; to import a table, convert it first: python -m simulator.convert" if is_other else ""
    return f"none of the {tried:,} lines tried is an event ({shown(reason)}){how_to}"


def _import(given: argparse.Namespace, settings: Settings, recording: Recording, survey: Survey, stop: Stop) -> int:
    progress = Progress(sys.stderr, survey.lines, NAME)
    if survey.first_invalid is not None:
        number, why = survey.first_invalid
        progress.write_line(
            f"{survey.invalid:,} of {survey.lines:,} lines are not events and become dead letters. "
            f"The first is line {given.skip_first + number}: {shown(why)}"
        )
    try:
        forwarder = Forwarder(settings)
    except (KafkaException, SettingsError) as error:
        return _failed(f"invalid settings; nothing was written\n{_described(error)}", 2)

    def above_progress(_record: logging.LogRecord) -> bool:
        progress.end()
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(above_progress)
    # A file name may have bytes that are not UTF-8.
    done = Import(forwarder, os.fsencode(given.events.name).decode(errors="backslashreplace"), progress, stop)
    until_s = time.monotonic() + given.connect_timeout
    try:
        if forwarder.wait_for_topics(lambda: stop.requested or time.monotonic() > until_s, _log):
            done.run(recording)
            problem = (
                "" if done.written == survey.lines else "stopped" if stop.requested else f"{given.events} has changed"
            )
        elif stop.requested:
            problem = "stopped"
        else:
            problem = (
                f"Kafka at {settings.kafka.bootstrap_servers} has not created the topics, or not answered at all, "
            )
            problem += f"within {given.connect_timeout} s"
    except DeliveryError as error:
        problem = f"{error}; correct the cause"
    except (KafkaException, TopicError, SettingsError, OSError) as error:
        problem = _described(error)
    except KeyboardInterrupt:
        problem = "stopped at once, without waiting for Kafka"
    finally:
        progress.end()
        forwarder.close()
    return _report(done, survey, settings, problem)


def _described(error: Exception) -> str:
    return f"Kafka: {error.args[0].str()}" if isinstance(error, KafkaException) else str(error)


def _report(done: Import, survey: Survey, settings: Settings, problem: str) -> int:
    if problem:
        perhaps = f", and perhaps some of the next {done.sent - done.written:,}" if done.sent > done.written else ""
        written = f"{done.written:,} of {survey.lines:,} lines are in Kafka{perhaps}; {_AGAIN}"
        return _failed(f"{problem}; {written if done.sent else 'nothing was written'}")
    if done.rejected:
        dead_letters = f"{settings.topics.rejected}: {done.rejected:,}; the first: {shown(done.first_rejected)}"
        print(f"{NAME}: parts that cannot be used are in {dead_letters}", file=sys.stderr)
    print(f"{NAME}: {done.written:,} lines, {done.records:,} records written to {settings.topics.data}")
    if survey.first_ns is not None and survey.last_ns is not None:
        # As dates, so that a wrong unit is noticed.
        print(f"{NAME}: event times from {iso_text(survey.first_ns)} to {iso_text(survey.last_ns)}")
    return REJECTED if done.rejected else 0


def _failed(text: str, status: int = 1) -> int:
    print(f"{NAME}: {text}", file=sys.stderr)
    return status


def import_arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="Write the events of a file to the data topic. Neither an MQTT broker nor the connector is needed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("events", type=_file, nargs="?", default="events.json", help="the events file (default events.json)")
    add("--config", type=Path, metavar="FILE", help="settings file (default: lsb.toml)")
    add("--as-recorded", action="store_true", help="write the events in file order instead of event-time order")
    add("--skip-first", type=_whole, default=0, metavar="N", help="skip the first N lines (default 0)")
    add("--read-first", type=_whole, metavar="N", help="import only N lines, after any skipped lines")
    add("--connect-timeout", type=_whole, default=10, metavar="S", help="seconds to wait for Kafka (default 10)")
    add("--verbose", action="store_true", help="log details")
    add("--version", action="version", version=version_of(NAME))
    return parser


def _file(text: str) -> Path:
    try:
        return readable_file(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(sys.maxsize)) - 1):
        message = f"must be a whole number, not {text!r:.60}"
        raise argparse.ArgumentTypeError(message)
    return int(text)
