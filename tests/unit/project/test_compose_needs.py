"""The requirements of the container tests are reported before anything is built, in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.compose import needs

ROOT = Path(__file__).parents[3]


def test_a_machine_without_docker_is_told_everything_that_is_missing_in_one_line(tmp_path: Path) -> None:
    bare = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", needs.__name__], cwd=ROOT, env=bare, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    for word in ("make test-compose needs", "docker.io", "debootstrap", "Compose v2", "Go 1.24"):
        assert word in line
