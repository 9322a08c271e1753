"""Units move between processes of two placements while data flows, and whatever dies, each result is there once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.integration.joiner_application import PARTITIONS, Application, Joiner, application, seeded_entries

_BATCH = 100


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


@contextmanager
def flowing(app: Application, seed: int) -> Iterator[None]:
    """Data comes in small batches for as long as this lasts."""
    app.create_topics()
    over = threading.Event()

    def feed() -> None:
        for turn in count():
            app.produce(seeded_entries(seed * 1000 + turn, _BATCH))
            if over.wait(0.02):
                return

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        yield
    finally:
        over.set()
        feeding.join()


def standby(app: Application, placement: str, **options: str) -> Joiner:
    return app.start("--standby", "--placement", placement, instance=placement, **options)


def owners(app: Application) -> dict[int, str]:
    return {unit: progress.owner for unit, progress in app.progress().items()}


def all_at(app: Application, owner: str) -> bool:
    return owners(app) == dict.fromkeys(range(PARTITIONS), owner)


def test_all_units_move_there_and_back_while_data_flows(app: Application) -> None:
    with flowing(app, 1):
        blue = app.start(instance="blue")
        blue.wait_for_units()
        green = standby(app, "green")
        green.wait_for("waiting until it is moved here")
        for to, owner in (("green", "green green"), ("process", "process blue"), ("green", "green green")):
            moved = app.command("move", "--to", to)
            assert moved.returncode == 0, moved.stdout + moved.stderr
            assert f"MOVED: all {PARTITIONS} units are at {to}" in moved.stdout
            assert all_at(app, owner)
    app.wait_until_through()
    assert blue.stop() == 0
    assert green.stop() == 0
    app.verify()
