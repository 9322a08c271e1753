"""Runs the process that sends records."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from broker.settings import KafkaSettings

_IDLE: Final = 1e-6
"""A rate at which no record is due for days. The sender ends at 0."""

_END_S: Final = 30.0


class Sender:
    """A process that sends records at a given rate; see `bench.contest.load.sender`.

    ``sent``: how many records were sent at all rates before the current one. ``late_ms``: the greatest delay of any of
    them.
    """

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        """Start the process. It sends nothing at first."""
        command = [sys.executable, "-m", "bench.contest.load.sender", kafka.bootstrap_servers, topic]
        # In a session of its own, so that Ctrl-C does not reach it.
        self._process = subprocess.Popen(  # noqa: S603 - this project
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.sent, self.late_ms = 0, 0.0
        self._has_begun = False

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def send(self, rate: float) -> None:
        """Send ``rate`` records a second from now on. Raises RuntimeError if the process has ended."""
        self._set(rate)
        self._read()
        self._has_begun = True

    def pause(self) -> None:
        """Send nothing, until the next call of `send`. Raises RuntimeError if the process has ended."""
        self.send(_IDLE)

    def end(self) -> None:
        """Wait until Kafka has all records, and end the process. Raises RuntimeError if it has ended, or does not."""
        self._set(0)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError("the sender does not end") from error

    def close(self) -> None:
        """Kill the process if it is running."""
        self._process.kill()
        self._process.communicate()

    def _set(self, rate: float) -> None:
        if self._process.stdin is None or self._process.poll() is not None:
            raise RuntimeError("the sender has ended")
        self._process.stdin.write(f"{rate!r}\n".encode())
        self._process.stdin.flush()
        if self._has_begun:
            report = self._read()
            self.sent += report["sent"]
            self.late_ms = max(self.late_ms, report["late_ms"])

    def _read(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise RuntimeError("the sender has ended")
        return json.loads(line)
