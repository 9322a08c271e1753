"""A running join moves to the Spark stage of docker-compose.yml, and back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Final

import pytest

from tests.compose import stand_ins
from tests.compose.stack import Stack, wait_until

UNITS: Final = 5


@pytest.fixture(scope="module")
def stack(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    try:
        stand_ins.build(spark=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the Spark image cannot be built here: {error}")
    with Stack(tmp_path_factory.mktemp("stack"), ("demo", "spark")).lent() as made:
        made.run("up", "-d", "--no-build")
        made.wait_until_healthy()
        yield made


def move(stack: Stack, site: str) -> None:
    """Move all units, and wait until the site serves and joins them."""
    order = ["python", "-m", "joiner", "move", "--config", "/etc/lsb/lsb.toml", "--to", site, "--timeout", "120s"]
    output = stack.run("exec", "-T", "joiner", *order)
    print(output)
    assert f"all {UNITS} units are at {site}" in output
    served = f'count(lsb_joiner_unit_owner{{site="{site}"}})'
    wait_until(lambda: stack.prometheus(served) == UNITS, f"all units are served by {site}")
    points = stack.prometheus("sum(lsb_db_connector_points_total)")
    wait_until(lambda: stack.prometheus("sum(lsb_db_connector_points_total)") > points + 1000, "it continues to join")


def test_the_stage_waits_as_a_standby_without_privileges_and_with_a_read_only_root(stack: Stack) -> None:
    shown = stack.inspect("spark")
    assert shown["Config"]["User"] == "10001:10001"
    assert shown["HostConfig"]["ReadonlyRootfs"]
    assert shown["HostConfig"]["CapDrop"] == ["ALL"]
    assert stack.prometheus('count(lsb_joiner_unit_owner{site="process"})') == UNITS


def test_a_join_moves_to_spark_and_back_and_nothing_is_lost_or_doubled(stack: Stack) -> None:
    wait_until(lambda: stack.prometheus("sum(lsb_db_connector_points_total)") > 1000, "the process joins")
    move(stack, "spark")
    move(stack, "process")
    stack.run("stop", "simulator")
    found = stack.verify()
    assert found["expected"] > 3000
    assert (found["missing"], found["doubled"]) == (0, 0)
