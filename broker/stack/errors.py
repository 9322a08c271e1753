"""The exceptions raised by the local stack. Their messages are shown to the user.

Callers only need to catch ``StackError``. Each message says what happened, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence


class StackError(Exception):
    """A command of the local stack failed."""


class MissingPartsError(StackError):
    """Raised if programs that the stack needs are missing. The message lists them and says how to install each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"the local stack cannot start on this machine:\n{listed}")


class CancelledError(StackError):
    """The user cancelled a download or a start."""
