"""Runs a joiner in which one batch fails unexpectedly, as if it had run out of memory or had a defect.

``LSB_FAIL=step:n:MemoryError python -m tests.integration.failing_joiner run …``: the n-th arrival at the step raises
that error. With ``LSB_HOLD=unit``, the replay of that unit lasts until it is cancelled. The production code contains no
hooks for this: the steps are wrapped before the joiner starts.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any, Final

from joiner.cli.main import main
from joiner.runtime.ownership import restore
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.operators.unit_join import UnitJoin
from joiner.runtime.task.unit import Unit

STEPS: Final[dict[str, tuple[type, str]]] = {
    "joined": (Unit, "_check_room"),  # the batch is in the state, but nothing is written
    "half-joined": (UnitJoin, "push"),  # the batch is in the state of only one of two joins
    "encoded": (Effects, "messages"),  # the results are being encoded
    "saved": (Unit, "snapshot"),  # a snapshot is taken, to be written with the results
}


ERRORS: Final[dict[str, type[Exception]]] = {"MemoryError": MemoryError, "KeyError": KeyError}


def arm(step: str, count: int, error: type[Exception]) -> None:
    """Wrap the step so that its n-th call does its work and then raises."""
    owner, name = STEPS[step]
    original: Callable[..., Any] = getattr(owner, name)
    calls = itertools.count(1)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if next(calls) == count:
            message = "cannot allocate"
            raise error(message)
        return result

    setattr(owner, name, wrapped)


def hold(number: int) -> None:
    """Make the replay of a unit last until it is cancelled."""
    replay = restore._replay  # noqa: SLF001 - the step that may take minutes

    def wrapped(readers: Any, unit: Unit, *rest: Any) -> int:
        while unit.number == number:
            readers.check()
            time.sleep(0.05)
        return replay(readers, unit, *rest)

    restore._replay = wrapped  # type: ignore[assignment] # noqa: SLF001 - as above


if __name__ == "__main__":
    if "LSB_HOLD" in os.environ:
        hold(int(os.environ["LSB_HOLD"]))
        main()
    chosen, number, kind = os.environ["LSB_FAIL"].split(":")
    arm(chosen, int(number), ERRORS[kind])
    main()
