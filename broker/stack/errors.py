"""The exceptions raised by the local stack. Their messages are shown to the user.

``StackError`` is the base class. Each message says what happened, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence


class StackError(Exception):
    """Raised if an operation of the local stack fails."""


class MissingPartsError(StackError):
    """Raised if programs that the stack needs are missing or unusable. The message says how to fix each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"the local stack cannot start on this machine:\n{listed}")


class CancelledError(StackError):
    """Raised if a download or the start of a server is cancelled."""
