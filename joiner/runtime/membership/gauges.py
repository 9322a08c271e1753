"""Metrics for the members of a runner's site, and for the units that the runner keeps warm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.metrics import Readings
    from joiner.runtime.membership.state import SiteState


def expose_membership(
    readings: Readings, state: Callable[[], SiteState | None], lags_s: Callable[[], Mapping[int, float]]
) -> None:
    """Add the metrics. Both functions must be thread-safe.

    ``state`` returns what the runner knows about its site, or None. ``lags_s`` returns, for each unit that the runner
    keeps warm, how long ago its state last matched the owner's last checkpoint.
    """

    def members() -> int:
        known = state()
        # The runner may be adding members at the same time.
        return 0 if known is None else sum(not member.is_gone for member in [*known.members.values()])

    def wrong_suspicions() -> int:
        known = state()
        return 0 if known is None else known.wrong_suspicions + known.refuted

    def epoch() -> int:
        known = state()
        return 0 if known is None else known.epoch

    readings.gauge("lsb_joiner_members", "Instances running at this site, according to their heartbeats.", members)
    readings.gauge("lsb_joiner_assignment_epoch", "Number of this site's last assignment.", epoch)
    readings.counter(
        "lsb_joiner_wrong_suspicions",
        "Times an instance was declared gone while it was still running.",
        wrong_suspicions,
    )
    readings.gauge(
        "lsb_joiner_standby_lag_seconds",
        "Seconds since the state of a unit kept warm here last matched its owner's last checkpoint.",
        lambda: {(str(unit),): lag_s for unit, lag_s in lags_s().items()},
        ("unit",),
    )
