"""Is every pair there exactly once, whatever kills the joiner's processes, and whenever?

Two processes share the units while seeded data flows. The schedule of a seed kills, freezes and replaces them, also
inside their transactions. The tester then judges the whole of the input against the whole of the output.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.schedule import INSTANCES, Action, schedule, seeds
from tests.integration.joiner_application import Application, Joiner, application, seeded_entries
from tests.integration.services import wait_until

_log = logging.getLogger(__name__)

RECORDS_PER_S = 600
CHUNK = 30


class Feeder:
    """Writes seeded data from a thread until told to stop."""

    def __init__(self, app: Application, seed: int) -> None:
        self.written = 0
        self._app, self._seed = app, seed
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def wait_for(self, more: int) -> None:
        """Wait until ``more`` further records have been written."""
        goal = self.written + more
        wait_until(lambda: self.written >= goal or bool(self._failed), f"{more} more records are written")

    def close(self) -> None:
        """Stop; what was begun is written."""
        self._stop.set()
        self._thread.join()
        assert not self._failed, self._failed

    def _run(self) -> None:
        try:
            entries = seeded_entries(self._seed, 60_000)
            while not self._stop.wait(CHUNK / RECORDS_PER_S) and self.written < len(entries):
                self._app.produce(entries[self.written : self.written + CHUNK])
                self.written += CHUNK
        except BaseException as error:  # noqa: BLE001 - told to the test, which waits in another thread
            self._failed.append(error)


class Play:
    """A schedule, played on two processes."""

    def __init__(self, app: Application, feeder: Feeder) -> None:
        self.deaths = self.takeovers = 0
        self._app, self._feeder = app, feeder
        self._running = {name: app.start(instance=name) for name in INSTANCES}

    def act(self, action: Action) -> None:
        """Do one thing."""
        self._feeder.wait_for(action.after)
        victim = self._running[action.instance]
        if action.kind == "freeze":
            self._freeze(action.instance, victim)
            return
        victim.kill()
        self.deaths += 1
        if action.kind == "die":
            self._die(action)
        if action.kind == "leave":
            self._wait_for_takeover(action.instance)
        self._running[action.instance] = self._app.start(instance=action.instance)

    def finish(self) -> None:
        """Wait until all input is joined, then end both processes."""
        for name, joiner in self._running.items():
            if joiner.process.poll() is not None:
                self._running[name] = self._app.start(instance=name)
        self._app.wait_until_through()
        for joiner in self._running.values():
            assert joiner.stop() == 0, joiner.text()[-3000:]

    def _die(self, action: Action) -> None:
        dying = self._app.start(
            instance=action.instance,
            module="tests.chaos.dying_joiner",
            LSB_CHAOS_DIE=f"{action.step}:{action.count}",
        )
        status = dying.ends()
        assert status == -signal.SIGKILL, f"{action}: ended with {status}\n{dying.text()[-3000:]}"
        self.deaths += 1

    def _freeze(self, name: str, victim: Joiner) -> None:
        victim.process.send_signal(signal.SIGSTOP)
        self._wait_for_takeover(name)
        self._feeder.wait_for(60)
        victim.process.send_signal(signal.SIGCONT)

    def _wait_for_takeover(self, name: str) -> None:
        (other,) = (instance for instance in INSTANCES if instance != name)
        if self._running[other].process.poll() is not None:
            self._running[other] = self._app.start(instance=other)

        def has_all() -> bool:
            found = self._app.progress()
            return bool(found) and {progress.instance for progress in found.values()} == {other}

        wait_until(has_all, f"{other} takes over from {name}")
        self.takeovers += 1


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path, application='snapshot_interval = "500ms"\nsnapshot_records = 150')


@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", seeds())
def test_every_pair_comes_out_once_whatever_dies(
    app: Application, chaos_report: list[dict[str, Any]], seed: int
) -> None:
    actions = schedule(seed)
    _log.warning("seed %s: %s", seed, actions)
    began = time.monotonic()
    app.create_topics()
    feeder = Feeder(app, seed)
    play = Play(app, feeder)
    try:
        wait_until(lambda: len(app.progress()) == app.partitions, "the application has begun")
        for action in actions:
            play.act(action)
    finally:
        feeder.close()
    play.finish()
    total = app.verify()["total"]
    row = {
        "seed": seed,
        "deaths": play.deaths,
        "takeovers": play.takeovers,
        "records": feeder.written,
        **{name: total[name] for name in ("expected", "found", "missing", "doubled", "unexpected")},
        "s": round(time.monotonic() - began, 1),
        "schedule": [vars(action) for action in actions],
    }
    _log.warning("%s", row)
    chaos_report.append(row)
    assert total["found"] > 0
    assert (total["missing"], total["doubled"], total["unexpected"]) == (0, 0, 0)
