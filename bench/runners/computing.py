"""A program that only computes, for comparison: a process that starts takes the cores from all others, too."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

COMPUTES: Final = "a program computes"
"""How this is called in reports."""

_CPU_S: Final = 1.5
"""A process of the joiner takes about this much CPU time until it serves units, on quick cores."""


def compute() -> None:
    """Run a program that takes as much CPU time as a process that starts. Wait until it has ended."""
    program = f"import time\nwhile time.process_time() < {_CPU_S}: pass"
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603 - our own program
