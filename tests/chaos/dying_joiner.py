"""The joiner, which kills itself with SIGKILL at the n-th arrival at a step of its transactions.

``LSB_CHAOS_DIE=step:n python -m tests.chaos.dying_joiner run …``. The product knows nothing of this: the steps are
wrapped from outside before it starts.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

from joiner.run.cli import main
from joiner.run.transaction import UnitTransactions

STEPS: Final = (
    "initialised",  # the id is taken, the claim not written
    "produced",  # results are in the log, the transaction is open
    "within-snapshot",  # all chunks written, the manifest not
    "before-offsets",  # the progress record written, the group's offsets not
    "before-commit",
    "after-commit",
)
"""Where it may die."""


class _Death:
    """Comes at the n-th call."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()

    def come(self, transactions: Any, *_arguments: Any) -> None:
        """Count; at the last call let everything produced reach Kafka, then die without a word."""
        with self._lock:
            self._left -= 1
            if self._left:
                return
            # No flush for a client that has nothing open: it would only cost time.
            transactions._producer.flush(2.0)  # noqa: SLF001 - death comes from inside
            os.kill(os.getpid(), signal.SIGKILL)


def arm(step: str, count: int) -> None:
    """Wrap the step so that the n-th arrival kills the process."""
    death = _Death(count)
    if step == "initialised":
        _wrap("init", after=lambda transactions, *_: death.come(transactions))
    elif step == "produced":
        _wrap("_produce_all", after=lambda transactions, messages: death.come(transactions) if messages else None)
    elif step == "within-snapshot":
        _wrap("_produce", before=lambda t, _topic, key, _value: death.come(t) if key.endswith("/manifest") else None)
    elif step == "before-offsets":
        _wrap("_produce", after=lambda t, _topic, key, _value: death.come(t) if key.endswith("/progress") else None)
    elif step == "before-commit":
        _wrap("_commit", before=death.come)
    elif step == "after-commit":
        _wrap("_commit", after=death.come)


def _nothing(*_arguments: Any) -> None:
    pass


def _wrap(name: str, before: Callable[..., Any] = _nothing, after: Callable[..., Any] = _nothing) -> None:
    original = getattr(UnitTransactions, name)

    def wrapped(self: UnitTransactions, *arguments: Any) -> None:
        before(self, *arguments)
        original(self, *arguments)
        after(self, *arguments)

    setattr(UnitTransactions, name, wrapped)


if __name__ == "__main__":
    chosen, _, number = os.environ["LSB_CHAOS_DIE"].partition(":")
    if chosen not in STEPS:
        message = f"there is no step {chosen!r}"
        raise SystemExit(message)
    arm(chosen, int(number))
    main()
