"""The life cycle of a joiner on real Kafka: start, stop, restart, takeover, status, reset."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from joiner.runtime.runners.workers.supervisor import IN_USE_STATUS
from tests.integration.joiner_application import (
    PARTITIONS,
    Application,
    application,
    record,
    seeded_entries,
)
from tests.integration.services import DEADLINE_S, ROOT, SHORT_MOMENT_S, stop, wait_until


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def test_input_is_joined_once_and_a_restart_continues_without_replay(app: Application) -> None:
    app.create_topics()
    app.produce(seeded_entries(1, 3000))
    first = app.start()
    app.wait_until_through()
    assert first.stop() == 0
    before = app.checkpoints()
    findings = app.verify()
    assert findings["total"]["found"] > 1000
    app.produce(seeded_entries(2, 1500))
    second = app.start()
    app.wait_until_through()
    assert second.stop() == 0
    replayed = re.findall(r"recovered at \S+ \((\d+) records replayed", second.text())
    assert replayed == ["0"] * PARTITIONS
    assert app.verify()["total"]["found"] > findings["total"]["found"]
    assert all(checkpoint.run != before[unit].run for unit, checkpoint in app.checkpoints().items())


def test_a_killed_joiner_replays_without_output_and_continues(app: Application) -> None:
    # Snapshots are rare, so that there are records to replay.
    app.application = 'snapshot_interval = "1h"\nsnapshot_records = 1000000'
    app.create_topics()
    first = app.start()
    app.produce(seeded_entries(3, 2000))
    app.wait_until_through()
    first.kill()
    second = app.start()
    app.produce(seeded_entries(4, 1000))
    app.wait_until_through()
    replayed = re.findall(r"recovered at \S+ \((\d+) records replayed", second.text())
    assert sum(map(int, replayed)) == 2000
    assert second.stop() == 0
    app.verify()


def test_the_largest_of_signals_at_any_time_ends_it_within_seconds(app: Application) -> None:
    starting = app.start()
    starting.wait_for("waiting for units")
    assert starting.stop() == 0
    running = app.start()
    running.wait_for_units()
    assert stop(running.process, signal.SIGINT, moment_s=SHORT_MOMENT_S) == 0


def test_two_processes_share_the_units_and_one_takes_over_from_the_other(app: Application) -> None:
    app.create_topics()
    one, two = app.start(instance="one"), app.start(instance="two")

    def owners() -> set[str]:
        return {checkpoint.instance for checkpoint in app.checkpoints().values()}

    wait_until(lambda: owners() == {"one", "two"} and len(app.checkpoints()) == PARTITIONS, "both have units")
    app.produce(seeded_entries(5, 1500))
    app.wait_until_through()
    assert one.stop() == 0
    wait_until(lambda: owners() == {"two"}, "the other takes over")
    app.produce(seeded_entries(6, 1500))
    app.wait_until_through()
    three = app.start(instance="three")
    wait_until(lambda: owners() == {"two", "three"}, "a new process gets its share")
    app.produce(seeded_entries(7, 1500))
    two.kill()
    wait_until(lambda: owners() == {"three"}, "the remaining process takes over from the killed one")
    app.wait_until_through()
    assert three.stop() == 0
    app.verify()


def test_a_second_process_under_the_same_name_is_refused_with_the_reason(app: Application) -> None:
    first = app.start(instance="same")
    first.wait_for_units()
    second = app.start(instance="same")
    wait_until(lambda: first.process.poll() is not None or second.process.poll() is not None, "one of them ends")
    ended = first if first.process.poll() is not None else second
    assert ended.process.returncode == IN_USE_STATUS
    assert "another process has started as instance 'same'" in ended.text()
    assert "--instance" in ended.text()
    assert "Traceback" not in ended.text()
    other = second if ended is first else first
    app.produce(seeded_entries(8, 500))
    app.wait_until_through()
    assert other.stop() == 0
    app.verify()


def test_status_shows_each_unit_with_owner_offsets_lag_and_frontiers(app: Application) -> None:
    never = app.command("status")
    assert never.returncode == 1
    assert "never run" in never.stdout
    app.create_topics()
    joiner = app.start(instance="north")
    app.produce(seeded_entries(9, 600))
    app.wait_until_through()
    assert joiner.stop() == 0
    app.produce([record("R1", "speed", 1_554_096_460_000, 1.0, "more")])
    shown = app.command("status")
    assert shown.returncode == 0, shown.stderr
    unexpected = [line for line in shown.stderr.splitlines() if "waiting for Kafka at" not in line]
    assert unexpected == []
    lines = shown.stdout.splitlines()
    rows = {int(line.split()[0]): re.split(r"\s{2,}", line.strip()) for line in lines if line.lstrip()[:1].isdigit()}
    assert sorted(rows) == list(range(PARTITIONS))
    reported = {unit["unit"]: unit for unit in json.loads(app.command("status", "--json").stdout)["units"]}
    for unit, checkpoint in app.checkpoints().items():
        assert rows[unit][1:3] == ["process north", "stopped"]
        assert rows[unit][-1] == str(checkpoint.offsets[app.topic("data")])
        assert int(rows[unit][4]) == (1 if unit == app.unit_of("R1") else 0), "lag"
        assert reported[unit]["pairs"] == checkpoint.counts["pairs"]
    assert "2019-04-01T05:" in shown.stdout


def test_status_distinguishes_a_killed_owner_from_a_running_one(app: Application) -> None:
    app.create_topics()
    app.produce(seeded_entries(9, 600))
    joiner = app.start(instance="north")
    app.wait_until_through()

    def states() -> set[str]:
        return {unit["state"] for unit in json.loads(app.command("status", "--json").stdout)["units"]}

    assert states() == {"running"}
    joiner.kill()
    wait_until(lambda: states() == {"gone"}, "the group has noticed that the process is gone")
    again = app.start(instance="south")
    wait_until(lambda: states() == {"running"}, "another process has its units")
    # A process owns a unit from its claim on, but only the units that it serves are marked as stopped.
    again.wait_for_units()
    assert again.stop() == 0
    assert states() == {"stopped"}
    app.verify()


def test_reset_asks_first_and_then_everything_starts_from_the_beginning(app: Application) -> None:
    assert "nothing to reset" in app.command("reset", "--yes").stdout
    app.create_topics()
    app.produce(seeded_entries(10, 800))
    joiner = app.start()
    app.wait_until_through()
    joiner.stop()
    before = app.checkpoints()
    asked = app.command("reset")
    assert asked.returncode == 2
    assert "--yes" in asked.stdout
    assert app.checkpoints() == before
    done = app.command("reset", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(set(checkpoint.offsets.values()) == {0} for checkpoint in app.checkpoints().values())
    assert app.command("status").stdout.count("nobody since a reset") == PARTITIONS
    pairs_before = app.values("out")
    again = app.start()
    app.wait_until_through()
    assert again.stop() == 0
    pairs_after = app.values("out")
    assert sorted(pairs_after) == sorted(pairs_before * 2), "the same results under the same ids"


def test_reset_beside_a_running_process_never_leaves_half_a_state(app: Application) -> None:
    app.create_topics()
    app.produce(seeded_entries(11, 500))
    joiner = app.start()
    app.wait_until_through()
    done = app.command("reset", "--yes")
    app.produce(seeded_entries(12, 500))
    if done.returncode == 0:
        assert joiner.ends() == 1
        assert "now without an owner since a reset" in joiner.text()
        assert all(set(checkpoint.offsets.values()) == {0} for checkpoint in app.checkpoints().values())
    else:
        assert ": not reset" in done.stdout


@pytest.mark.parametrize("command", [[], ["run"], ["move"], ["status"], ["reset"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "joiner", *command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert shown.returncode == 0
    assert "usage: joiner" in shown.stdout
    assert "example" in shown.stdout.lower()


def test_wrong_settings_are_all_reported_together_before_anything_starts(app: Application, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(
        "[kafka]\nservers = 'x'\n[topics]\npartitions = 0\n[application]\nahead_max = 5\n[tiypo]\n"
        "[[join]]\nname = 'a:b'\nleft = 'x'\nright = 'y'\noutput = 'z'\n"
    )
    shown = subprocess.run(
        [sys.executable, "-m", "joiner", "run", "--config", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "LSB_KAFKA__BOOTSTRAP_SERVERS": app.bootstrap},
        check=False,
    )
    assert shown.returncode == 2
    for what in ("kafka.servers", "topics.partitions", "application.max_future_skew", "tiypo", "join.0.name"):
        assert what in shown.stderr, shown.stderr
    assert "Traceback" not in shown.stderr
