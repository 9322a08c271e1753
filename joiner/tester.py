"""Checks the correctness of the join: ``python joiner/tester.py``, see ``--help``.

A thin script: the checks are in `joiner.check`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# For a script, Python puts its folder, joiner/, first on the path: `import joiner` would fail, and our files could
# shadow standard modules.
_HERE = str(Path(__file__).resolve().parent)
if __name__ == "__main__" and _HERE in sys.path:
    sys.path[sys.path.index(_HERE)] = str(Path(__file__).resolve().parents[1])

from joiner.check.command import main  # noqa: E402 - the path comes first

if __name__ == "__main__":
    sys.exit(main())
