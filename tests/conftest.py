"""Settings for all tests: the format of logs, and reproducible Hypothesis profiles."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# Services that the tests start log to files, where plain text is easier to read and search than JSON.
os.environ.setdefault("LSB_LOG", "text")

# There is no deadline per example, because any example can be slow on a busy machine.
settings.register_profile("local", deadline=None, print_blob=True)
# Every run uses the same examples, so that its result depends on the code and not on chance.
settings.register_profile(
    "ci", parent=settings.get_profile("local"), derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# A failure is reported without a search for the smallest failing example.
settings.register_profile("no-shrinking", parent=settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("LSB_HYPOTHESIS", "ci" if os.environ.get("CI") else "local"))
