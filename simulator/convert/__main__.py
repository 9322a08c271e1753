"""Runs the command: ``python -m simulator.convert``."""

import sys

from simulator.convert.command import main

if __name__ == "__main__":
    sys.exit(main())
