"""Claiming a unit that others want, too: who is fenced before the claim is written tries again a few times."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from joiner.run.continuity import Claimant
from joiner.run.progress import Progress
from joiner.run.recovery import claim
from joiner.run.settings import JoinerSettings
from joiner.run.transaction import Fenced, UnitTransactions
from joiner.run.warming import Warm

CLAIM_ATTEMPTS: Final = 5
_STEP_S: Final = 0.5
"""So much longer is each wait than the one before."""

_log = logging.getLogger(__name__)


class Taker:
    """Claims units for a runner; ``wait`` is given seconds, and returns early where the runner is to end."""

    def __init__(
        self, settings: JoinerSettings, admin: AdminClient, lender: Consumer, wait: Callable[[float], object]
    ) -> None:
        self._settings, self._admin, self._lender, self._wait = settings, admin, lender, wait

    def claim(self, unit: int, claimant: Claimant, warm: Warm | None) -> tuple[UnitTransactions, Progress]:
        """Claim a unit, with what is prepared for it. Raises what `recovery.claim` does."""
        prepared = warm.transactions if warm else None
        for attempt in range(CLAIM_ATTEMPTS):
            transactions, prepared = prepared or UnitTransactions(self._settings, unit, self._lender), None
            try:
                given = self._settings, unit, self._admin, transactions, claimant
                return transactions, claim(*given, *((warm.readers,) if warm else ()))
            except Fenced:
                _log.info("unit %s: fenced before the claim was written (attempt %s)", unit, attempt + 1)
                self._wait(_STEP_S * attempt)
        raise Fenced
