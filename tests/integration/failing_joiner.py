"""The joiner, in which one batch fails in a way that nobody foresaw: memory, a defect.

``LSB_FAIL=step:n python -m tests.integration.failing_joiner run …``; the n-th arrival at the step raises. The product
knows nothing of this: the steps are wrapped from outside before it starts.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any, Final

from joiner.run.cli import main
from joiner.run.unit import Effects, Unit

STEPS: Final[dict[str, tuple[type, str]]] = {
    "joined": (Unit, "_check_room"),  # the state has taken the batch, nothing is written
    "half-joined": (Unit, "_join"),  # one of two joins has taken it
    "encoded": (Effects, "messages"),  # the results are being encoded
    "saved": (Unit, "snapshot"),  # the snapshot beside the results
}


def arm(step: str, count: int) -> None:
    """Wrap the step so that its n-th call raises after its work."""
    owner, name = STEPS[step]
    original: Callable[..., Any] = getattr(owner, name)
    calls = itertools.count(1)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if next(calls) == count:
            message = "cannot allocate"
            raise MemoryError(message)
        return result

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    chosen, _, number = os.environ["LSB_FAIL"].partition(":")
    arm(chosen, int(number))
    main()
