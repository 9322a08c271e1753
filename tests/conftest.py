"""What all tests share: reproducible Hypothesis profiles."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# The services that tests start write their logs into files; lines of text are easier to look at and to look for.
os.environ.setdefault("LSB_LOG", "text")

# Two busy cores make single examples slow without anything being wrong: no deadline for an example.
settings.register_profile("local", deadline=None, print_blob=True)
# The same examples in every run, so that a change is judged by itself and not by its luck.
settings.register_profile(
    "ci", parent=settings.get_profile("local"), derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# For those who want to know that a test fails, and not why.
settings.register_profile("no-shrinking", parent=settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("LSB_HYPOTHESIS", "ci" if os.environ.get("CI") else "local"))
