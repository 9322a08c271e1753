"""Replaces `time.sleep`, which libfaketime breaks, in every Python process whose clock is set.

Python sleeps until a time on the monotonic clock. libfaketime does not change that clock, but shifts that time anyway,
so the sleep fails if the clock is set back. Setting a real clock has no such effect. Waiting for a duration works in
both cases.
"""

import select
import time
from typing import SupportsIndex


def _sleep(seconds: float | SupportsIndex) -> None:
    select.select([], [], [], seconds)  # type: ignore[arg-type] # whatever `time.sleep` accepts


time.sleep = _sleep
