"""The command `python -m simulator`, which is the same as `python simulator/simulator.py`."""

import sys

from simulator.replay import main

if __name__ == "__main__":
    sys.exit(main())
