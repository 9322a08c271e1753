"""Loaded by every Python process whose clock is set, as libfaketime breaks `time.sleep`.

Python sleeps until a time of the monotonic clock. libfaketime does not change that clock, but shifts that time anyway:
if the clock is set back, the sleep fails. No real clock does that. Waiting for a duration works in both cases.
"""

import select
import time
from typing import SupportsIndex


def _sleep(seconds: float | SupportsIndex) -> None:
    select.select([], [], [], seconds)  # type: ignore[arg-type] # whatever `time.sleep` accepts


time.sleep = _sleep
