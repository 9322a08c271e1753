"""``joiner reset``: forget an application's progress, so that its next start begins anew."""

from __future__ import annotations

from broker.topics import topic_facts
from joiner.run.clients import make_admin
from joiner.run.settings import JoinerSettings
from joiner.run.state_log import read_state
from joiner.run.transaction import Aborted, Fenced, UnitTransactions, unsubscribed_consumer


def reset(settings: JoinerSettings, *, confirmed: bool) -> int:
    """Tombstone all state of all units; a process that still runs is fenced. Returns the exit status."""
    application = settings.application.name
    admin = make_admin(settings.kafka)
    if settings.state_topic not in topic_facts(admin, [settings.state_topic]):
        print(f"application {application!r} has never run: nothing to forget")
        return 0
    if not confirmed:
        print(
            f"This forgets the progress of {application!r} in all {settings.topics.partitions} units. Its next start "
            f"begins at application.start = {settings.application.start!r} and writes its results again: what "
            f"{settings.topics.out} holds already stays there, under the same ids. "
            "Stop its processes first, then repeat with --yes."
        )
        return 2
    lender = unsubscribed_consumer(settings)
    failed = False
    for unit in range(settings.topics.partitions):
        transactions = UnitTransactions(settings, unit, lender)
        try:
            transactions.init()
            state = read_state(settings.kafka, application, settings.state_topic, unit)
            transactions.forget(state)
        except (Fenced, Aborted) as error:
            failed = True
            print(f"unit {unit}: a running process took it back ({str(error) or 'fenced'}): stop it and repeat")
        else:
            print(f"unit {unit}: {len(state.values)} records forgotten")
    return 1 if failed else 0
