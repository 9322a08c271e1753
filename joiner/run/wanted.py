"""The units that a runner wants and does not serve: to be taken, lost to another, or set aside for they cannot go on.

What becomes of a unit when taking or serving it has failed is decided here, the same for every runner: it is taken
again from its last commit, it is looked who has it, or it is set aside with the reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, TypeVar

from confluent_kafka import KafkaException

from joiner.run.clients import told
from joiner.run.continuity import Claimant, Elsewhere
from joiner.run.progress import RESET_RUN, Progress
from joiner.run.settings import JoinerSettings
from joiner.run.state_log import read_progress
from joiner.run.taking import CLAIM_ATTEMPTS, Taker
from joiner.run.transaction import Aborted, Fenced, UnitTransactions
from joiner.run.unit import UnitStopped
from joiner.run.warming import Warm

_FENCED_WAIT_S: Final = 1.0
"""How long a fenced owner waits before it looks who has the unit: a claim takes well below it."""
_RETRY_WAIT_S: Final = 1.0

_Taken = TypeVar("_Taken")

_log = logging.getLogger(__name__)


class Wanted:
    """Of which units what is to be done next. `take` may be called by any thread, for one unit by one at a time."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        *,
        in_group: bool,
        fenced: Callable[[], None] = lambda: None,
    ) -> None:
        """``in_group``: a group tells which units this runner is to have, so that one may come back to it.

        ``fenced`` is told, by any thread, when a unit is found to be claimed by another.
        """
        self._note_fenced = fenced
        self._settings = settings
        self._claimant = claimant
        self._in_group = in_group
        # Force is for once: who has been overcome and comes back by force must not be overcome again.
        self._were_taken: set[int] = set()
        # Units to be taken (again) not before a time, with whether they were lost to somebody unknown.
        self._waiting: dict[int, tuple[float, bool]] = {}
        self.aside: dict[int, str] = {}
        """Units that do not go on here, with the reason."""
        # Of those set aside because another process has claimed them: when it is looked whether they are still ours.
        self._lost: dict[int, float] = {}

    def start(self, taker: Taker, found_elsewhere: Callable[[int, Progress], bool]) -> None:
        """From now on units can be claimed. ``found_elsewhere`` is told of units of other placements; whether they are
        waited for.
        """
        self._taker, self._found_elsewhere = taker, found_elsewhere

    @property
    def stuck(self) -> set[int]:
        """Units that cannot go on. Those that another process has claimed do: there, or here again after a while."""
        return self.aside.keys() - self._lost.keys()

    def due(self, units: AbstractSet[int], busy: AbstractSet[int]) -> list[int]:
        """Which of ``units`` are to be taken now; ``busy``: those that are served, or somebody else's concern."""
        now_s = time.monotonic()
        for number in [number for number, look_s in list(self._lost.items()) if look_s <= now_s]:
            # By now the group has told everyone. If it still gives us the unit, it was claimed by a process that
            # did not know yet that it had lost it, and nobody serves it.
            del self._lost[number]
            if self.aside.pop(number, None) is not None:
                _log.info("unit %s: the group still gives it to us; taking it again", number)
        for number in units - (self._waiting.keys() | self.aside.keys() | busy):
            self._waiting[number] = (now_s, False)
        # Listed, for a claim of a move may be arranging what comes next.
        waiting = {number for number, (not_before_s, _) in list(self._waiting.items()) if not_before_s <= now_s}
        return sorted((waiting & units) - busy)

    def take(
        self,
        number: int,
        claimant: Claimant | None,
        warm: Warm | None,
        serving: Callable[[UnitTransactions, Progress, Warm | None], _Taken],
        connect: Callable[[int], None],
    ) -> _Taken | None:
        """Claim a unit; None: not now, and what comes next is arranged. ``claimant``: for a move; by default ourselves.

        ``serving`` makes of what was claimed what the runner serves; ``connect`` comes before, where nothing is warm.
        """
        was_fenced = self._waiting.get(number, (0.0, False))[1]
        try:
            if was_fenced and not self._still_ours(number):
                return None
            if warm is None:
                connect(number)
            transactions, progress = self._taker.claim(number, claimant or self._claimant_of(number), warm)
            try:
                taken = serving(transactions, progress, warm)
            except Fenced:
                self._note_fenced()
                self.look_who_has(number)
                return None
            _log.info("unit %s: taken", number)
            return taken
        except Elsewhere as found:
            self._leave_elsewhere(number, found.progress, str(found))
        except UnitStopped as stopped:
            self._set_aside(number, str(stopped))
        except Fenced:
            self._note_fenced()
            self._set_aside(
                number,
                f"unit {number}: claimed by others {CLAIM_ATTEMPTS} times; another runner wants it too",
            )
        except (Aborted, KafkaException) as error:
            _log.warning("unit %s: cannot be taken now, trying again: %s", number, told(error))
            self._waiting[number] = (time.monotonic() + _RETRY_WAIT_S, was_fenced)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            self._set_aside_for_defect(number, "taking it failed", error)
        return None

    def give_up(self, number: int, error: Exception) -> None:
        """A batch failed, and the unit is not served any more: begin it anew at its last commit where that may help."""
        if isinstance(error, Aborted | KafkaException):
            _log.warning("unit %s: going back to its last commit: %s", number, told(error))
            self._waiting[number] = (time.monotonic() + _RETRY_WAIT_S, False)
        elif isinstance(error, Fenced):
            self._note_fenced()
            self.look_who_has(number)
        elif isinstance(error, UnitStopped):
            self._set_aside(number, str(error))
        else:
            self._set_aside_for_defect(number, "a batch failed", error)

    def look_who_has(self, number: int, wait_s: float = _FENCED_WAIT_S) -> None:
        """Before it is taken again, see whether it is still ours."""
        _log.warning("unit %s: somebody else may have it; looking who", number)
        self._waiting[number] = (time.monotonic() + wait_s, True)

    def take_soon(self, number: int) -> None:
        """It may be taken by the ordinary procedure."""
        self.aside.pop(number, None)
        self._waiting[number] = (time.monotonic(), False)

    def taken(self, number: int) -> None:
        """It is served from now on."""
        self._were_taken.add(number)
        self._waiting.pop(number, None)
        self.aside.pop(number, None)

    def forget(self, number: int) -> None:
        """It is others' to serve now."""
        self._waiting.pop(number, None)
        self.aside.pop(number, None)
        self._lost.pop(number, None)

    def _claimant_of(self, number: int) -> Claimant:
        return replace(self._claimant, take=False) if number in self._were_taken else self._claimant

    def _still_ours(self, number: int) -> bool:
        """After being fenced: whether the progress record still names this run. If not, the unit is lost."""
        progress = read_progress(
            self._settings.kafka, self._settings.application.name, self._settings.state_topic, number
        )
        # None: what we wrote hangs (see `hanging`), and nobody else has written anything.
        if progress is None or progress.run == self._claimant.run:
            _log.info("unit %s: the one that fenced us never claimed it; taking it back", number)
            return True
        why = f"unit {number}: now owned by {progress.owner} (run {progress.run}); given up"
        if not self._claimant_of(number).may_continue(progress):
            self._leave_elsewhere(number, progress, why)
            return False
        self._set_aside(number, why)
        if self._in_group and progress.run != RESET_RUN:
            self._lost[number] = time.monotonic() + self._settings.application.session_timeout / 1e9
        return False

    def _leave_elsewhere(self, number: int, progress: Progress, why: str) -> None:
        """The unit belongs to another placement."""
        if self._found_elsewhere(number, progress):
            self._waiting.pop(number, None)
        else:
            self._set_aside(number, why)

    def _set_aside(self, number: int, why: str) -> None:
        _log.error("%s", why)
        self.aside[number] = why
        self._waiting.pop(number, None)

    def _set_aside_for_defect(self, number: int, what: str, error: Exception) -> None:
        _log.debug("unit %s", number, exc_info=error)
        self._set_aside(
            number,
            f"unit {number}: {what} with {type(error).__name__}: {told(error)}; nothing of it was written. Restart "
            "the joiner; if it happens again, this is a defect to report (--log-level debug shows where)",
        )
