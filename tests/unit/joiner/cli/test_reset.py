"""Does `joiner reset` say what it does, and why a unit was not reset?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from joiner.cli import reset
from joiner.runtime.kafka.transaction import Aborted, Fenced
from joiner.runtime.model import UnitStopped
from joiner.runtime.repartition.prior import RepartitionError
from joiner.runtime.settings import replica_settings
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.repartition.test_copies import SPEED


def no_copies(*_: object) -> list[str]:
    return []


def run_reset(
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    *,
    confirmed: bool = True,
    replica: int = 0,
    delete: Callable[..., list[str]] = no_copies,
    **options: Any,
) -> int:
    """Reset an application that has run. ``error``: what the claim of each unit raises. ``delete``: see the module."""
    settings = replica_settings(make_settings(**options), replica)

    class Transactions:
        def __init__(self, *_: object) -> None:
            pass

        def init(self) -> None:
            raise error

    monkeypatch.setattr(reset, "make_admin", lambda _settings: None)
    monkeypatch.setattr(reset, "topic_facts", lambda _admin, names: dict.fromkeys(names))
    monkeypatch.setattr(reset, "existing_copies", lambda _admin, settings: list(settings.repartitioned.values()))
    monkeypatch.setattr(reset, "delete_copies", delete)
    monkeypatch.setattr(reset, "ensure_topics", lambda _admin, _topics: {})
    monkeypatch.setattr(reset, "unsubscribed_consumer", lambda _settings: None)
    monkeypatch.setattr(reset, "UnitTransactions", Transactions)
    return reset.reset(settings, ManualClock(), confirmed=confirmed)


def test_a_process_that_claims_the_unit_meanwhile_is_to_be_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reset(monkeypatch, Fenced()) == 1
    text = "unit 0: not reset, because a running process has claimed it; stop the process and repeat"
    assert capsys.readouterr().out.splitlines()[0] == text


def test_a_failed_transaction_does_not_ask_to_stop_a_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reset(monkeypatch, Aborted("the broker is not available")) == 1
    text = "unit 0: not reset (the broker is not available); repeat the command"
    assert capsys.readouterr().out.splitlines()[0] == text


def test_what_a_reset_would_do_is_true_of_a_start_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reset(monkeypatch, Fenced(), confirmed=False, application={"start": "latest"}) == 2
    shown = capsys.readouterr().out
    assert "begins at application.start = 'latest'" in shown
    assert "writes all results" not in shown


def test_the_copies_are_named_before_they_are_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reset(monkeypatch, Fenced(), confirmed=False, stream=[SPEED]) == 2
    shown = capsys.readouterr().out
    assert "The copies in lsb.plant.repartition are deleted, and made again" in shown
    assert "with the same ids, except for those from copies" in shown
    run_reset(monkeypatch, Fenced(), delete=lambda *_: ["lsb.plant.repartition"], stream=[SPEED])
    assert capsys.readouterr().out.startswith("lsb.plant.repartition: deleted\nunit 0: not reset")


def test_nothing_is_reset_while_a_process_still_copies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def delete(*_: object) -> list[str]:
        raise RepartitionError("it still copies")

    assert run_reset(monkeypatch, ValueError("not reached"), delete=delete, stream=[SPEED]) == 1
    assert capsys.readouterr().out == "nothing was reset: it still copies\n"


def test_a_replica_begins_where_replica_0_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reset(monkeypatch, Fenced(), confirmed=False, application={"replicas": 2}, replica=1) == 2
    shown = capsys.readouterr().out
    assert "application 'lsb.r1'" in shown
    assert "begins with the newest snapshot of replica 0" in shown


def test_a_replica_that_cannot_be_founded_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reset(monkeypatch, UnitStopped("unit 0: waits"), application={"replicas": 2}, replica=1) == 1
    assert capsys.readouterr().out.splitlines()[0] == "not reset: unit 0: waits"


@pytest.mark.parametrize(("replicas", "others"), [(1, []), (2, [1]), (3, [1, 2])])
def test_the_other_replicas_are_to_be_reset_after_replica_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], replicas: int, others: list[int]
) -> None:
    run_reset(monkeypatch, Fenced(), application={"replicas": replicas})
    shown = capsys.readouterr().out
    assert [number for number in range(3) if f"joiner reset --replica {number} --yes" in shown] == others


@pytest.mark.parametrize(("replicas", "replica", "is_told"), [(1, 0, False), (2, 0, True), (3, 2, True)])
def test_whoever_has_changed_the_settings_is_told_to_go_back_to_one_replica_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], replicas: int, replica: int, *, is_told: bool
) -> None:
    application = {"replicas": replicas}
    assert run_reset(monkeypatch, Fenced(), confirmed=False, application=application, replica=replica) == 2
    shown = capsys.readouterr().out
    assert ("first go back to one replica, as docs/replicas.md describes" in shown) == is_told
    assert shown.endswith("Stop its processes first, then repeat the command with --yes.\n")
