"""A script that checks whether the join is correct. ``python joiner/tester.py --help`` lists its options.

The checks themselves are in `joiner.check`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts the script's folder, joiner/, first on the path. `import joiner` would then fail, and modules in this
# folder could shadow those of the standard library.
_HERE = str(Path(__file__).resolve().parent)
if __name__ == "__main__" and _HERE in sys.path:
    sys.path[sys.path.index(_HERE)] = str(Path(__file__).resolve().parents[1])

from joiner.check.command import main  # noqa: E402 - the path must be set first

if __name__ == "__main__":
    sys.exit(main())
