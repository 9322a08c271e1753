"""The fault rates of a world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Temper:
    """Fault probabilities per call. ``kill`` and ``freeze`` apply in full to the steps of a claim or a commit; for
    other calls they are multiplied by ``other``.
    """

    kill: float = 0.0
    freeze: float = 0.0
    lose: float = 0.0
    fail: float = 0.0
    stop: float = 0.0
    switch: float = 0.08
    other: float = 0.1
    """The factor for calls that are not part of a claim or a commit."""


CALM: Final = Temper(switch=0.05)
DEADLY: Final = Temper(kill=0.1, other=0.0)
"""Soon kills the next process that claims or commits."""

TEMPERS: Final = (
    Temper(kill=0.03, stop=0.002),
    Temper(freeze=0.02, switch=0.2),
    Temper(freeze=0.05, switch=0.3, other=0.05),
    Temper(lose=0.08, fail=0.02, other=0.05),
    Temper(lose=0.25, kill=0.005, other=0.05),
    Temper(kill=0.012, freeze=0.006, lose=0.03, fail=0.01, stop=0.001),
    Temper(kill=0.01, freeze=0.01, switch=0.4, other=0.3),
)
