"""Can several units be restored from their snapshots at the same time?"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

_PROGRAM: Final = """
import importlib
import sys
import threading
from joiner.runtime.task import unit_snapshot

def restore():
    together.wait()
    assert unit_snapshot.decode(data) == saved

sys.setswitchinterval(1e-6)
for _ in range(150):
    importlib.reload(unit_snapshot)
    rows, align = unit_snapshot.SavedRows(b"", [], b"", b""), unit_snapshot.SavedAlign(b"", b"")
    saved = unit_snapshot.UnitSnapshot(1, {"data": 1}, ["a"], {"records": 1}, {"power": b""}, {"power left": rows})
    saved.aligns["spindle"] = align
    data = unit_snapshot.encode(saved)
    together = threading.Barrier(4)
    threads = [threading.Thread(target=restore) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_the_first_snapshots_of_a_process_may_be_decoded_by_several_threads() -> None:
    """A race in msgspec, which only the first use of a type can lose: so each turn has new types."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
