"""The errors of the local stack, with messages for a user.

Callers need to catch ``StackError`` only; each message says what happened, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class StackError(Exception):
    """The local stack cannot execute a command."""


class MissingPartsError(StackError):
    """Programs that are missing on this machine, all together, each with its remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"the local stack cannot start on this machine:\n{listed}")


class CancelledError(StackError):
    """The user cancelled while programs were downloaded or servers started."""
