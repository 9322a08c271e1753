"""Starts, monitors and stops the pipeline's services as child processes. Each writes a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker.stack.child import Child, wait_until

STOP_S: Final = 6.0
"""Deadline for shutdown; every service exits within 5 s of SIGTERM."""

READY_S: Final = 120.0
"""Startup deadline. Spark takes 15 s on two idle cores, and a minute on busy ones."""


class ServiceFailed(Exception):
    """Raised if a service does not start or exits unexpectedly, or if the simulator or ``joiner move`` fails.

    If a service failed, the message includes the end of its log.
    """


class Services:
    """The services of one demo. They log to files in ``folder`` and find the servers through ``environment``."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        # Logs are plain text, because the demo shows the end of a failed service's log.
        self._environment = {"LSB_LOG": "text", **os.environ, **environment}
        self._children: dict[str, Child] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, *arguments: str, **environment: str) -> None:
        """Start ``python -m <arguments>`` as the service called ``name``, with additional environment variables."""
        child = Child(self._folder / f"{name}.pid", self._folder / f"{name}.log")
        # The service may still be running if an earlier demo was killed.
        child.stop(STOP_S)
        child.log.unlink(missing_ok=True)
        child.start([sys.executable, "-m", *arguments], folder=Path.cwd(), environment=self._environment | environment)
        self._children[name] = child

    def wait_for(self, name: str, words: str) -> None:
        """Wait until ``words`` appear in the service's log. Raises `ServiceFailed` if it ends or takes too long."""
        child = self._children[name]
        has_answer = wait_until(lambda: words in _text(child.log) or child.pid is None, READY_S)
        if words not in _text(child.log):
            why = "ended before it was ready" if has_answer else f"was not ready within {READY_S:.0f} s"
            raise ServiceFailed(f"{name} {why}:\n{_end(child.log)}")

    def logged(self, name: str) -> str:
        """Return a service's log so far."""
        return _text(self._children[name].log)

    def check(self) -> None:
        """Raise `ServiceFailed` if a service has exited unexpectedly."""
        for name, child in self._children.items():
            if child.pid is None:
                raise ServiceFailed(f"{name} ended unexpectedly:\n{_end(child.log)}")

    def stop(self) -> list[str]:
        """Stop all services in the order they were started; return the names of those that had to be killed."""
        return [name for name in list(self._children) if not self._children.pop(name).stop(STOP_S)]


def _text(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _end(log: Path, lines: int = 15) -> str:
    return f"{log}:\n" + "\n".join(_text(log).splitlines()[-lines:])
