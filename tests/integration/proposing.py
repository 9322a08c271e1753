"""Runs `lsb-init` on real servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.services import DEADLINE_S, ROOT


def init(bootstrap: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `lsb-init` in a folder, and wait for its end."""
    return subprocess.run(
        [sys.executable, "-m", "joiner.cli.proposal", *arguments],
        cwd=folder,
        env={**os.environ, "LSB_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
