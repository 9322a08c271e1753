"""All compiled loops are compiled in advance."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[4]
PACKAGES: Final = ("broker", "connector", "control", "db_connector", "joiner", "simulator")

_CODE: Final = """
import sys
from joiner.cli.loops import main
from joiner.core import compiled
main()
print(*sys.modules)
print(sorted(package for package, loops in compiled._declared.items() if loops))
"""


def test_all_loops_of_all_packages_are_compiled() -> None:
    command = [sys.executable, "-c", _CODE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    modules, left = done.stdout.splitlines()
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    wanted = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources
        if re.search(r"^@compiled\(", path.read_text(), re.MULTILINE)
    }
    assert len(wanted) > 20
    assert wanted - set(modules.split()) == set()
    assert left == "[]"
