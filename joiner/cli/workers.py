"""``joiner run --processes N`` and ``joiner scale N``: several worker processes on one machine."""

from __future__ import annotations

import argparse
import logging
import re
import socket
import sys
import threading
from contextlib import closing
from typing import Final

from broker.commandline import end_on_signals
from broker.kafka.topics import wait_for_topics
from broker.settings import SettingsError
from joiner.runtime.clock import Clock
from joiner.runtime.control import Left, MemberRecord, Scale, Workers
from joiner.runtime.kafka.clients import KAFKA_LOG
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.kafka.member_log import MemberLog
from joiner.runtime.kafka.topics import application_topics
from joiner.runtime.membership.observer import read_site
from joiner.runtime.membership.state import SiteState
from joiner.runtime.runners.workers.autoscaler import Autoscaler
from joiner.runtime.runners.workers.host_load import HostLoad, can_observe
from joiner.runtime.runners.workers.scaling import start_scaling
from joiner.runtime.runners.workers.supervisor import Command, WorkerSupervisor
from joiner.runtime.settings import JoinerSettings

_GRACE_S: Final = 15.0
_LOOK_S: Final = 0.2
_CLOSE_S: Final = 0.5

_log = logging.getLogger(__name__)


def run_workers(settings: JoinerSettings, options: argparse.Namespace, clock: Clock) -> int:
    """Run workers with this command's options. Return the exit status.

    Their number is ``options.processes`` or, if that is None, depends on the load (``scaling.processes``). Raises
    `SettingsError` if the load cannot be observed on this machine.
    """
    bounds = settings.scaling.bounds if options.processes is None else None
    if bounds is not None and not can_observe():
        message = "scaling.processes works on Linux only: use `joiner run --processes N`"
        raise SettingsError(message)
    count, at_most = (options.processes, options.processes) if bounds is None else bounds
    settings.listen_of(at_most - 1)
    site, instance, host = settings.application.site, settings.application.instance, socket.gethostname()
    # Only these workers claim units of other sites, and only when they are first started.
    forcing = {f"{instance}-{number + 1}" for number in range(count)} if options.force_claim else set[str]()

    def command(name: str, number: int) -> Command:
        arguments = [sys.executable, "-m", "joiner", "run", "--instance", name, "--log-level", options.log_level]
        if options.config:
            arguments += ["--config", str(options.config)]
        if settings.application.replicas > 1:
            arguments += ["--replica", str(settings.application.replica)]
        if options.standby:
            arguments.append("--standby")
        if name in forcing:
            forcing.remove(name)
            arguments.append("--force-claim")
        listen = settings.listen_of(number)
        return Command(arguments, {} if listen is None else {"LSB_METRICS__LISTEN": listen})

    stop = threading.Event()
    end_on_signals(stop.set, _GRACE_S)
    if wait_for_topics(settings.kafka, application_topics(settings), stop.is_set, _log, KAFKA_LOG) is None:
        return 0
    with closing(_Control(settings, clock)) as control:
        supervisor = WorkerSupervisor(
            instance,
            count,
            command,
            clock,
            orders=control.read,
            report=lambda running, wanted: control.write(
                Workers(site=site, instance=instance, host=host, running=running, wanted=wanted)
            ),
            report_end=lambda name, run: control.write(Left(site=site, instance=name, run=run)),
        )
        if bounds is not None:
            load = HostLoad(settings, clock)
            start_scaling(supervisor, Autoscaler(*bounds), load, control.is_drained, dry_run=settings.scaling.dry_run)
        return supervisor.run(stop)


def scale(settings: JoinerSettings, count: int, instance: str | None, timeout_s: float, clock: Clock) -> int:
    """Tell a supervisor to run ``count`` workers, and wait until it does. Return the exit status.

    ``instance``: the supervisor; it may be None if there is only one at the site. A drained worker counts as running
    and is named in the output.
    """
    site = settings.application.site
    known = _supervisors(settings, clock)
    if instance is None and len(known) == 1:
        (instance,) = known
    if instance not in known or instance is None:
        running = f"running there: {', '.join(known)}" if known else "start one with `joiner run --processes`"
        any_name = "are several supervisors" if known else "is no supervisor"
        fault = f"is no supervisor {instance!r}" if instance else any_name
        print(f"there {fault} of worker processes at site {site!r}; {running}")
        return 1
    began_s = clock.monotonic_s()
    with closing(ControlLog(settings)) as control:
        control.write(Scale(site=site, instance=instance, processes=count))
    said = ""
    worker = rf"{re.escape(instance)}-\d+"
    while clock.monotonic_s() - began_s < timeout_s:
        state = read_site(settings, site, clock)
        workers = None if state is None else state.workers.get(instance)
        members = [] if state is None else [name for name in state.live if re.fullmatch(worker, name)]
        drained = [] if state is None else sorted(state.drained.intersection(members))
        now = (len(members), workers.wanted if workers is not None else 0)
        text = f"{now[0]} of {now[1]} worker processes are members"
        text += f"; drained: {', '.join(drained)}" if drained else ""
        if text != said:
            said = text
            print(f"{clock.monotonic_s() - began_s:7.3f} s  {text}", flush=True)
        if now == (count, count):
            return 0
        clock.sleep(_LOOK_S)
    print(f"{instance} is not running {count} worker processes after {timeout_s:.0f} s; see its log")
    return 1


class _Control:
    """The control topic, as a supervisor reads it: only the records written from now on."""

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        """Raises KafkaException if the end of the topic cannot be read."""
        self._log = MemberLog(settings)
        # An order may immediately follow the first report.
        self._log.begin_now(clock)
        self._site = SiteState(settings.application.site)

    def read(self) -> list[MemberRecord]:
        """Return new records about the site. Does not wait."""
        found = [logged for logged in self._log.read() if logged.record.site == self._site.site]
        for logged in found:
            self._site.apply(logged.record, logged.offset)
        return [logged.record for logged in found]

    def is_drained(self, instance: str) -> bool:
        """Return whether an instance is drained. Thread-safe.

        Orders written before this process started are known once the next summary has been read.
        """
        return instance in self._site.drained

    def write(self, record: MemberRecord) -> None:
        """Append a record without waiting for it to be written. It may be lost."""
        self._log.write(record)

    def close(self) -> None:
        """Stop reading."""
        self._log.close(_CLOSE_S)


def _supervisors(settings: JoinerSettings, clock: Clock) -> dict[str, Workers]:
    state = read_site(settings, settings.application.site, clock)
    return {} if state is None else dict(sorted(state.workers.items()))
