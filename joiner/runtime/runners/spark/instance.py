"""One task of the Spark stage: a joiner instance. It runs in a Spark Python worker until it is stopped."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from broker.kafka.topics import TopicError
from broker.logs import set_up_logs
from broker.settings import SettingsError
from joiner.runtime.clock import SystemClock
from joiner.runtime.control import Stop
from joiner.runtime.kafka.clients import describe
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.membership.consumer_group import InstanceInUse
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.runners.process import JoinerProcess
from joiner.runtime.settings import SPARK, JoinerSettings

_LISTEN_S: Final = 0.2
"""How often the thread that waits for the stop request checks if the instance has ended."""

_RETRY_WAIT_MAX_S: Final = 30.0

_log = logging.getLogger(__name__)


class StageOrder(NamedTuple):
    """What the driver asks of every instance.

    ``stage``: a new id generated each time the stage starts. ``log_level``: the name of a log level. ``force`` and
    ``standby``: see `Claimant` and `JoinerProcess`.
    """

    settings: JoinerSettings
    stage: str
    log_level: str
    force: bool
    standby: bool


class Outcome(NamedTuple):
    """How an instance ended: its exit status, and the error that ended it (empty if none)."""

    status: int
    error: str


def run_instance(order: StageOrder, number: int, attempt: int) -> Outcome:
    """Run an instance until the driver stops it. Return its outcome.

    ``number``: the number of the task, from 0. ``attempt``: how many attempts of this task have failed. Spark retries a
    task at once, so this function waits before each further attempt. Errors that a retry would hit again are returned.
    Others are raised, and Spark restarts the task.
    """
    set_up_logs(order.log_level)
    try:
        return Outcome(_run(order, number, attempt), "")
    except SettingsError as error:
        outcome = Outcome(2, str(error))
    except (TopicError, InstanceInUse) as error:
        outcome = Outcome(1, describe(error))
    except KafkaException as error:
        _log.error("instance %s: %s", number, describe(error))
        raise
    # The driver gets the outcome only once all instances have ended.
    _log.error("instance %s has ended: %s", number, outcome.error)
    return outcome


def _run(order: StageOrder, number: int, attempt: int) -> int:
    settings = settings_of(order.settings, number)
    claimant = Claimant(uuid.uuid4().hex, settings.application.instance, SPARK, force=order.force)
    process = JoinerProcess(settings, claimant, SystemClock(), standby=order.standby)
    is_over, is_stopped = threading.Event(), threading.Event()

    def stop() -> None:
        process.stop()
        is_stopped.set()

    arguments = settings, order.stage, stop, is_over.is_set
    listener = threading.Thread(target=_await_stop, args=arguments, name="stop", daemon=True)
    listener.start()
    try:
        if attempt:
            wait_s = min(2.0 ** (attempt - 1), _RETRY_WAIT_MAX_S)
            _log.warning("instance %s: attempt %s begins in %.0f s", number, attempt + 1, wait_s)
            is_stopped.wait(wait_s)
        return process.run()
    finally:
        is_over.set()
        listener.join()


def settings_of(settings: JoinerSettings, number: int) -> JoinerSettings:
    """Return the settings of one instance. Its number is appended to its name and added to its metrics port.

    Raises `SettingsError` if the port would be too high.
    """
    application, metrics = settings.application, settings.metrics
    name = f"{application.instance}-{number}"
    return settings.model_copy(
        update={
            "application": application.model_copy(update={"instance": name}),
            "metrics": metrics.model_copy(update={"listen": settings.listen_of(number)}),
        }
    )


def _await_stop(settings: JoinerSettings, stage: str, stop: Callable[[], None], is_over: Callable[[], bool]) -> None:
    """Call ``stop`` once the driver asks the instances of this stage to stop."""
    with closing(ControlLog(settings)) as control:
        while not is_over():
            if any(isinstance(record, Stop) and record.run == stage for record, _ in control.read(_LISTEN_S)):
                stop()
                return
