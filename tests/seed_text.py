"""Parses lists of seeds for the tests that run seeded histories."""

from __future__ import annotations


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in a string such as ``"1-100"``, ``"3 7 9"`` or ``"1-10,42"``."""
    found: list[int] = []
    for part in text.replace(",", " ").split():
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found
