"""A joiner process: its log, and how it is stopped or killed."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.integration.services import DEADLINE_S, STOP_S, kill_with_children, stop, wait_until

UNITS: Final = 3
"""The number of units of an application, unless a test needs another one."""


@dataclass
class Joiner:
    """A joiner process and its log."""

    process: subprocess.Popen[bytes]
    log: Path
    patience_s: float = DEADLINE_S
    """How long to wait for a log line. Spark starts slowly when other tests also run Spark, and stops slowly."""
    stop_s: float = STOP_S

    def text(self) -> str:
        """Return the log so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, deadline_s: float | None = None) -> re.Match[str]:
        """Wait until the log matches a pattern. Return the match."""
        deadline_s = deadline_s or self.patience_s
        found: re.Match[str] | None = None

        def logged() -> bool:
            nonlocal found
            ended = self.process.poll() is not None
            found = re.search(pattern, self.text())
            assert found or not ended, f"the joiner ended before {pattern!r} was logged:\n{self.text()[-3000:]}"
            return found is not None

        try:
            wait_until(logged, f"{pattern!r} is logged", deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()[-3000:]}") from error
        assert found is not None
        return found

    def wait_for_units(self, units: int = UNITS) -> None:
        """Wait until the joiner has claimed ``units`` units."""
        self.wait_for(rf"(?s)(unit \d+: claimed.*){{{units}}}")

    def stop(self) -> int:
        """Stop the joiner. Return the exit status."""
        try:
            return stop(self.process, deadline_s=self.stop_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{error}\n{self.text()[-3000:]}") from error

    def kill(self) -> None:
        """Kill the joiner and its children, because a Spark driver has a JVM and workers."""
        kill_with_children(self.process)

    def ends(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait until the joiner exits by itself. Return the exit status."""
        return self.process.wait(deadline_s)
