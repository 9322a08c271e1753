"""Is a unit's producer freed when the unit is given up? The garbage collector runs too rarely to be relied on."""

# ruff: noqa: SLF001 - the tests set up and run a single step

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import pytest

from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import Aborted
from joiner.runtime.migration.handover import Handover
from joiner.runtime.model import UnitStopped
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.runners.commit import Commit
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.runner_parts import idle_loop, make_task, quiet_services, serve


class Transactions:
    """Fails with a traceback that refers to this object, as the transactions of a unit do."""

    def commit(self, *_given: Any) -> SnapshotPlace | None:
        raise Aborted("2 message(s) failed delivery")


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """A real pool, because it matters how it handles references in errors."""
    with ThreadPoolExecutor(1) as made:
        yield made


def done(future: Future[Any]) -> Future[Any]:
    wait([future])
    return future


def test_a_process_keeps_nothing_of_a_unit_whose_commit_failed(pool: ThreadPoolExecutor) -> None:
    transactions: Any = Transactions()
    gone = weakref.ref(transactions)
    loop: Any = idle_loop(make_settings())
    unit = SimpleNamespace(offsets={"machine.data": 5})
    nothing: Any = None
    commit = Commit(nothing, done(pool.submit(transactions.commit)))
    serve(loop, 3, make_task(unit, transactions=transactions, commit=commit))
    del commit
    assert not loop.tasks._commits.finish(3, loop.tasks.tasks[3])
    loop.supervisor.collect_failures()
    del transactions
    assert gone() is None


@pytest.mark.parametrize("error", [UnitStopped, OSError])
def test_nothing_is_kept_of_a_state_that_could_not_be_prepared(
    error: type[Exception], pool: ThreadPoolExecutor
) -> None:
    host: Any = SimpleNamespace(tasks={}, claiming=set(), prepare=lambda _unit: None, why_failed=lambda _unit: "")
    moves: Any = Handover(make_settings(), Claimant("run", "one"), host, quiet_services(pool), standby=True)
    prepared: Any = Transactions()
    gone = weakref.ref(prepared)

    def prepare(_unit: int, prepared: Any = prepared) -> Any:
        assert prepared is not None
        raise error("damaged")

    moves._prepare = prepare
    moves.warm_up(0)
    del prepare, moves._prepare, prepared
    done(moves._warming[0])
    moves.poll({0})
    assert gone() is None
