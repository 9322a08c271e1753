"""Warm-up: builds a unit's state while its owner is still running, so that the handover is short.

Warm-up writes nothing and does not initialise the transactional id. It builds the state at the owner's last checkpoint,
while the owner keeps processing input. After the claim, a silent replay brings the state up to the final checkpoint
(see `restore.recover`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from broker.kafka.topics import topic_facts
from joiner.runtime.kafka.checkpoint_log import read_checkpoint, read_state
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.transaction import UnitTransactions
from joiner.runtime.model import UnitStopped
from joiner.runtime.ownership.eligibility import (
    Claimant,
    OwnedElsewhere,
    check_continues,
    check_site,
    check_topics_exist,
)
from joiner.runtime.ownership.foundation import check_origin
from joiner.runtime.ownership.restore import build_state
from joiner.runtime.ownership.services import Services
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.unit import Unit

_ATTEMPTS: Final = 2
"""Number of attempts to build the state. While the log is being read, the owner may write a new snapshot and compaction
may remove the old one. In that case, the second attempt finds the new one."""


@dataclass
class Warm:
    """A unit whose state was built before its claim. Its Kafka clients are connected, but do not own the unit."""

    unit: Unit
    transactions: UnitTransactions
    readers: Readers


def warm_up(
    settings: JoinerSettings,
    number: int,
    services: Services,
    claimant: Claimant,
    *,
    of_own_site: bool = False,
    is_over: Callable[[], bool] = lambda: False,
) -> Warm | None:
    """Build a unit's state before the unit is claimed. Return None if the unit can be claimed right away.

    ``of_own_site``: build the state only if the unit belongs to the claimant's own site. By default, such a unit yields
    None. ``is_over``: returns True once the state is no longer wanted.

    Raises `OwnedElsewhere` if ``of_own_site`` is set and the unit belongs to another site; `UnitStopped` if this runner
    cannot continue the unit or cannot build its state; KafkaException if Kafka does not respond; and `ClaimCancelled`
    if the state is no longer wanted.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return _warm_up(settings, number, services, claimant, of_own_site=of_own_site, is_over=is_over)
        except OwnedElsewhere:
            raise
        except UnitStopped:
            if attempt + 1 == _ATTEMPTS:
                raise
    return None


def _warm_up(
    settings: JoinerSettings,
    number: int,
    services: Services,
    claimant: Claimant,
    *,
    of_own_site: bool,
    is_over: Callable[[], bool],
) -> Warm | None:
    with ExitStack() as undo:
        readers = Readers(settings, services.clock)
        undo.callback(readers.close)
        readers.is_over = is_over
        if of_own_site:
            # A standby checks this repeatedly, so it does not connect all consumers to find out.
            found = read_checkpoint(readers, number)
            if found is None:
                return None
            check_site(settings, found, claimant)
        readers.connect(number)
        state = read_state(readers, number)
        checkpoint = state.checkpoint()
        if checkpoint is None or (claimant.may_continue(checkpoint) and not of_own_site):
            return None
        topics = topic_facts(services.admin, settings.input_topics)
        check_topics_exist(settings, number, topics)
        check_continues(settings, checkpoint, topics, replace(claimant, force=True))
        check_origin(settings, number, checkpoint, services.admin, services.clock)
        readers.check()
        unit = build_state(checkpoint, state, readers)
        readers.state, readers.basis = state, checkpoint.basis
        transactions = services.make_transactions(settings, number)
        transactions.connect()
        undo.pop_all()
        return Warm(unit, transactions, readers)
