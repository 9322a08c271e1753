"""A program that only computes, for comparison: a process that starts takes the cores from all others, too."""

from __future__ import annotations

import subprocess
import sys

COMPUTES = "a program computes"
"""How this is called in reports."""


def compute(cpu_s: float) -> None:
    """Run a program that takes this much CPU time, in s. Wait until it has ended."""
    program = f"import time\nwhile time.process_time() < {cpu_s}: pass"
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603 - our own program
