"""The command ``python -m bench.kafka``."""

from __future__ import annotations

import sys

from bench.kafka import main

sys.exit(main())
