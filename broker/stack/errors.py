"""The errors of the local stack, with messages for a user.

Callers need to catch only ``StackError``. Each message states what happened, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class StackError(Exception):
    """A command of the local stack failed."""


class MissingPartsError(StackError):
    """Programs are missing on this machine. The message lists all of them, each with its remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"the local stack cannot start on this machine:\n{listed}")


class CancelledError(StackError):
    """The user cancelled a download or a start."""
