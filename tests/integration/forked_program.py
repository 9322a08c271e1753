"""A program for `test_forked`: prints what it finds, and ends as its arguments say."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

if __name__ == "__main__":
    found = {
        "arguments": sys.argv[1:],
        "program": sys.argv[0],
        "path": sys.path,
        "folder": str(Path.cwd()),
        "variable": os.environ.get("LSB_TOLD"),
        "files": sorted(int(file.name) for file in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "random": random.random(),
        "tells_of_crashes": faulthandler.is_enabled(),
        "is_interruptible": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    }
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stderr.write("to standard error\n")
    match sys.argv[1:]:
        case ["exit", status]:
            sys.exit(int(status))
        case ["raise"]:
            raise ValueError("told so")
        case ["wait"]:
            sys.stdout.flush()
            signal.pause()
        case _:
            pass
