"""Claiming a unit that others may want, too: one attempt, which tells of whoever came between."""

from __future__ import annotations

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from joiner.run.continuity import Claimant
from joiner.run.progress import Progress
from joiner.run.readers import Readers
from joiner.run.recovery import claim
from joiner.run.settings import JoinerSettings
from joiner.run.state_log import read_progress
from joiner.run.transaction import Fenced, UnitTransactions
from joiner.run.warming import Warm


class Overtaken(Fenced):
    """Another initialised the transactional id before our claim was written.

    ``before``: the run that the progress record named when we began, empty where there was none. While it names that
    one, nobody has claimed the unit since.
    """

    def __init__(self, before: str) -> None:
        super().__init__()
        self.before = before


class Taker:
    """Claims units for a runner."""

    def __init__(self, settings: JoinerSettings, admin: AdminClient, lender: Consumer) -> None:
        self._settings, self._admin, self._lender = settings, admin, lender

    def claim(
        self, unit: int, claimant: Claimant, warm: Warm | None, readers: Readers
    ) -> tuple[UnitTransactions, Progress]:
        """Claim a unit, with what is prepared. Raises `Overtaken`, `CalledOff`, and what `recovery.claim` does."""
        settings = self._settings
        before = read_progress(settings.kafka, settings.application.name, settings.state_topic, unit, readers)
        transactions = warm.transactions if warm else UnitTransactions(settings, unit, self._lender)
        readers.check()
        try:
            return transactions, claim(settings, unit, self._admin, transactions, claimant, readers)
        except Fenced as fenced:
            raise Overtaken(before.run if before is not None else "") from fenced
