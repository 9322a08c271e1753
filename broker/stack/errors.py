"""What can go wrong with the local stack, in words for a user.

``StackError`` is all a caller needs to catch; each message says what happened, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class StackError(Exception):
    """The local stack cannot do what was asked."""


class MissingPartsError(StackError):
    """Programs that are not on this machine, all together, each with its way out."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"the local stack cannot start on this machine:\n{listed}")


class CancelledError(StackError):
    """The user asked to stop while something was still being fetched or started."""
