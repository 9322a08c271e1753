"""A thread that keeps reading until it is stopped. After an error, it reports the cause, waits, and starts again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException

from broker.settings import SettingsError
from joiner.runtime.kafka.clients import describe

DEFECT: Final = "an error in this program; its log contains the cause"

_RETRY_S: Final = 1.0
_RETRY_S_MAX: Final = 30.0

_log = logging.getLogger(__name__)


class RetryingThread:
    """A thread that reads something continuously."""

    def __init__(
        self,
        what: str,
        read: Callable[[threading.Event, Callable[[], None]], None],
        report: Callable[[str], None],
    ) -> None:
        """``what``: what is read, for the log.

        ``read``: reads until the event is set, or raises. It calls its second argument whenever all is in order.
        ``report``: called with the cause of each error.
        """
        self._what, self._read, self._report = what, read, report
        self._stop = threading.Event()
        self._trouble = ""
        self._wait_s = _RETRY_S
        self._thread = threading.Thread(target=self._run, name=f"read {what}", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading soon."""
        self._stop.set()

    def join(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` seconds for reading to stop."""
        self._thread.join(wait_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._read(self._stop, self._note_success)
            except Exception as error:  # noqa: BLE001 - without this thread, the service would show old facts forever
                self._note_error(error)
            self._stop.wait(self._wait_s)
            self._wait_s = min(2 * self._wait_s, _RETRY_S_MAX)

    def _note_success(self) -> None:
        self._trouble, self._wait_s = "", _RETRY_S

    def _note_error(self, error: Exception) -> None:
        is_expected = isinstance(error, KafkaException | SettingsError)
        trouble = describe(error) if is_expected else DEFECT
        if trouble != self._trouble:
            if not is_expected:
                _log.error("%s cannot be read", self._what, exc_info=error)
            _log.warning("%s: %s", self._what, trouble)
        self._trouble = trouble
        self._report(trouble)
