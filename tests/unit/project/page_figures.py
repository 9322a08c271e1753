"""Lists the measured figures of the page of the control service; see `figures`."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from tests.unit.project.recorded import Figure, evidence


def figures_of_the_page() -> Iterable[Figure]:
    """Yield the figures about the page of the control service."""
    page, found = "docs/control.md", evidence("bench_page")["figures"]
    first_s = found["first view (s)"]
    yield Figure(
        page,
        "complete {:.1f} s after the login (median of five visits, at most {:.1f} s), after {:.2f} MB.",
        (median(first_s), max(first_s), median(found["received for the first view (bytes)"]) / 1e6),
    )
    yield Figure(
        page,
        "it received {:.1f} kB a second, the service took {:.2f} cores and {:.0f} MB, and no script of the page ran "
        "for longer than {:.2f} s.",
        (
            median(found["received a second (bytes)"]) / 1e3,
            median(found["cores"]),
            median(found["memory of the service (MB)"]),
            max(found["longest task of the page (s)"]),
        ),
    )
    yield Figure(
        page,
        "took {:.1f} s for one unit, and up to {:.0f} s for all",
        (median(found["keys of one unit (s)"]), max(found["keys of all units (s)"])),
    )
