"""The pages of the service, in the order in which the frame shows the way to them."""

from __future__ import annotations

from typing import Final

from control.page.frame import Place
from control.page.letters import LetterSection
from control.page.overview import OverviewSection

PLACES: Final = (
    Place("/", "Overview", OverviewSection),
    Place("/dead-letters", "Dead letters", LetterSection),
)
