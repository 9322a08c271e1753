"""Replaces `time.sleep`, which libfaketime breaks, in every Python process whose clock is set.

Python sleeps until a deadline on the monotonic clock. libfaketime leaves that clock alone but shifts the deadline, so
the sleep fails if the clock is set back. Setting a real clock has no such effect. Waiting for a duration works in both
cases.
"""

import select
import time
from typing import SupportsIndex


def _sleep(seconds: float | SupportsIndex) -> None:
    select.select([], [], [], seconds)  # type: ignore[arg-type] # whatever `time.sleep` accepts


time.sleep = _sleep
