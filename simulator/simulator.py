"""The script `python simulator/simulator.py`, which calls `simulator.replay.main`.

Python puts the folder of a script first on the path, and `import simulator` would then find this file instead of the
package. The entry is therefore replaced with the parent folder.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from simulator.replay import main  # noqa: E402 - only after the path is right

if __name__ == "__main__":
    sys.exit(main())
