"""Does a join that moves between runners hold when one of them dies at a seeded step? Shown for two processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.stack import ephemeral_stack
from tests.chaos.moving import Play, process
from tests.chaos.schedule import seeds
from tests.integration.joiner_application import Application

TURNS = 3

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """A Kafka without the wires that the other chaos tests put before it."""
    with ephemeral_stack(say=print) as stack:
        stack.up([stack.kafka])
        yield stack.kafka.address


@pytest.mark.parametrize("seed", seeds())
def test_a_join_that_moves_holds_whichever_side_dies_at_whichever_step(kafka: str, tmp_path: Path, seed: int) -> None:
    app = Application(kafka, tmp_path)
    try:
        findings = Play(app, seed, (process("process"), process("green")), TURNS).run()
        assert findings["total"]["found"] > 100
    finally:
        app.close()
