"""Runs a joiner that dies at a point named in the environment; see `tests.chaos.dying`."""

from __future__ import annotations

import sys

from tests.chaos import dying

if __name__ == "__main__":
    sys.argv.insert(1, "joiner")
    dying.main()
