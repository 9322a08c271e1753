"""Joins and an align that are moved between runners stay correct when one of them dies at a seeded step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.moving import Play, Runner, process, spark
from tests.chaos.schedule import seeds
from tests.integration.joiner_application import ALIGNS, Application, found_of

SPARK_SEEDS = 7
IS_FULL = "LSB_CHAOS_FULL" in os.environ
TURNS = 3 if IS_FULL else 1

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


def play(kafka: str, folder: Path, seed: int, runners: tuple[Runner, Runner]) -> None:
    app = Application(kafka, folder, aligns=ALIGNS)
    try:
        findings = Play(app, seed, runners, TURNS).run()
        assert findings["total"]["found"] > 100
        assert found_of(findings, "aligned rows", "table") > 100
    finally:
        app.close()


@pytest.mark.parametrize("seed", seeds()[: None if IS_FULL else 1])
def test_a_join_that_moves_holds_whichever_side_dies_at_whichever_step(kafka: str, tmp_path: Path, seed: int) -> None:
    play(kafka, tmp_path, seed, (process("process"), process("green")))


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds()[:SPARK_SEEDS])
def test_a_join_that_moves_to_spark_and_back_holds_as_well(kafka: str, tmp_path: Path, seed: int) -> None:
    play(kafka, tmp_path, seed, (process("process"), spark()))
