"""Loaded by every Python process whose clock is set: libfaketime takes `time.sleep` for a wait on that clock.

Python sleeps until a moment of the monotonic clock. libfaketime leaves that clock alone, and shifts the moment all the
same: where the clock is set back, the sleep fails. No real clock does that. A wait of a duration is right under both.
"""

import select
import time
from typing import SupportsIndex


def _sleep(seconds: float | SupportsIndex) -> None:
    select.select([], [], [], seconds)  # type: ignore[arg-type] # whatever `time.sleep` takes


time.sleep = _sleep
