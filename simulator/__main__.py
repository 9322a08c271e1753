"""The `python -m simulator` command, equivalent to `python simulator/simulator.py`."""

import sys

from simulator.replay import main

if __name__ == "__main__":
    sys.exit(main())
