"""The script `python simulator/simulator.py`: finds its package and calls `simulator.replay.main`.

Nothing else is here. Python puts the folder of a script first on the path, where `import simulator` would find this
very file instead of the package; so that entry is replaced by the parent folder.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from simulator.replay import main  # noqa: E402 - only after the path is right

if __name__ == "__main__":
    sys.exit(main())
