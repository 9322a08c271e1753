"""Adds and removes workers of a host while they run, as the autoscaler decides."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

from confluent_kafka import KafkaException

from joiner.runtime.kafka.clients import describe
from joiner.runtime.runners.workers.autoscaler import Autoscaler
from joiner.runtime.runners.workers.host_load import HostLoad
from joiner.runtime.runners.workers.supervisor import WorkerSupervisor

_EVERY_S: Final = 5.0
_STARTED_S: Final = 15.0
"""A worker that has been running for this long serves its share of the units, unless it is drained."""

_log = logging.getLogger(__name__)


def start_scaling(
    supervisor: WorkerSupervisor,
    scaler: Autoscaler,
    load: HostLoad,
    is_drained: Callable[[str], bool],
    *,
    dry_run: bool,
) -> None:
    """Scale in a thread that ends with the process, so that requests to Kafka do not delay the supervisor.

    ``is_drained(name)``: whether a worker is drained. ``dry_run``: only log what would be done.
    """
    arguments = supervisor, scaler, load, is_drained, threading.Event()
    threading.Thread(target=scale, args=arguments, kwargs={"dry_run": dry_run}, name="scaling", daemon=True).start()


def scale(
    supervisor: WorkerSupervisor,
    scaler: Autoscaler,
    load: HostLoad,
    is_drained: Callable[[str], bool],
    is_over: threading.Event,
    *,
    dry_run: bool,
) -> None:
    """Observe and scale until ``is_over`` is set."""
    note, is_known = "", True
    with closing(load):
        while not is_over.wait(_EVERY_S):
            try:
                seen = load.observe(supervisor.running().values())
            except (KafkaException, OSError) as error:
                level, is_known = logging.INFO if is_known else logging.DEBUG, False
                _log.log(level, "the load is not known, so the number of workers is not changed: %s", describe(error))
                scaler.begin_anew()
                continue
            is_known = True
            wanted = supervisor.wanted
            serving = [name for name in supervisor.running(for_s=_STARTED_S) if not is_drained(name)]
            decided = scaler.observe(seen, wanted, len(serving))
            if scaler.note != note:
                note = scaler.note
                _log.info("%s worker processes: %s", wanted, note or "nothing prevents a change any more")
            if decided is None:
                continue
            if dry_run:
                _log.info("would run %s worker processes instead of %s: %s", decided.workers, wanted, decided.reason)
            else:
                supervisor.want(decided.workers, decided.reason)
