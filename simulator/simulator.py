"""The script `python simulator/simulator.py`, which calls `simulator.replay.main`.

When Python runs a script, it puts the script's folder first on the path, so `import simulator` would find this file
instead of the package. That entry is therefore replaced with the parent folder.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from simulator.replay import main  # noqa: E402 - after fixing the path

if __name__ == "__main__":
    sys.exit(main())
