"""Does db_connector end after a signal, whatever it hangs in?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

DEADLINE_S: Final = 60

HANGS: Final = """
import os, signal, time
from db_connector import __main__ as service

def hang(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        time.sleep(1)

service._serve, service._GRACE_S = hang, 0.1
service.main()
"""


def test_a_call_that_never_returns_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", HANGS]
    ended = subprocess.run(
        program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == 0
    assert "exiting without waiting for the database and Kafka; no data is lost" in ended.stderr
