"""Files imported straight into Kafka: what is joined, also if an import is repeated, stopped or killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from broker.wire.records import Record, decode_data
from tests.integration.joiner_application import QUANTITIES, Application, application, found_of, things_over_all_units
from tests.integration.services import (
    DEADLINE_S,
    ends_of,
    kill,
    read_topic,
    start_service,
    stop,
    topic_reader,
    wait_until,
)

BASE_MS: Final = 1_554_096_460_000
EVENTS: Final = 3_000
MANY: Final = 20_000


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def recorded(app: Application, count: int) -> tuple[Path, set[tuple[str, str]]]:
    """Write ``count`` events to a file, not in time order. Return it, and the id and quantity of each record in it."""
    draw = random.Random(count)
    things = things_over_all_units(7)
    lines, contained = [], set()
    for number in range(count):
        values = {name: round(draw.uniform(0, 500), 3) for name in draw.sample(QUANTITIES, draw.randint(1, 3))}
        contained |= {(f"e{number}", name) for name in values}
        event = {"Thing": draw.choice(things), "Timestamp": BASE_MS + 37 * number, "id": f"e{number}", **values}
        lines.append(json.dumps(event))
    draw.shuffle(lines)
    path = app.folder / "recorded.json"
    path.write_text("\n".join(lines) + "\n")
    return path, contained


def start_import(app: Application, path: Path, *more: str, **environment: str) -> subprocess.Popen[bytes]:
    arguments = (str(path), "--config", str(app.config), "--connect-timeout", "60", *more)
    return start_service("simulator.importer", *arguments, environment=environment, log=app.folder / "import.log")


def log(app: Application) -> str:
    return (app.folder / "import.log").read_text()


def arrived(app: Application) -> list[tuple[str, str]]:
    """Return the id and quantity of each record in the data topic."""
    found = [decode_data(one.value, "ms")[0] for one in read_topic(app.bootstrap, app.topic("data"), app.partitions)]
    return [(record.id, record.quantity) for record in found if isinstance(record, Record)]


@pytest.mark.parametrize("data_format", ["json", "arrow"])
def test_an_imported_file_is_joined_and_importing_it_again_adds_no_pair(app: Application, data_format: str) -> None:
    app.data_format = data_format
    path, contained = recorded(app, EVENTS)
    pairs = []
    for _ in range(2):
        assert start_import(app, path).wait(DEADLINE_S) == 0, log(app)
        joiner = app.start()
        app.wait_until_through()
        findings = app.verify()
        pairs.append([found_of(findings, "results", join) for join in ("power", "gap")])
        assert joiner.stop() == 0
    assert min(pairs[0]) > 0
    assert pairs[0] == pairs[1]
    result = f"lsb-import: {EVENTS:,} lines, {len(contained):,} records written to {app.topic('data')}\n"
    assert log(app).count(result) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_import_is_completed_by_the_next_one(app: Application, number: signal.Signals) -> None:
    path, contained = recorded(app, MANY)
    app.create_topics()
    # At most 500 lines a second, so that it is still running when its first records are seen.
    first = start_import(app, path, LSB_CONNECTOR__IN_FLIGHT_MAX="500", LSB_CONNECTOR__LINGER="1s")
    with closing(topic_reader(app.bootstrap, "reader")) as reader:
        wait_until(lambda: sum(ends_of(reader, app.topic("data"), app.partitions)) > 0, "records arrive")
    if number == signal.SIGKILL:
        kill(first)
    else:
        assert stop(first) == 1
        assert "lsb-import: stopped; " in log(app)
        assert f" of {MANY:,} lines are in Kafka" in log(app)
    assert len(set(arrived(app))) < len(contained)
    assert start_import(app, path).wait(DEADLINE_S) == 0, log(app)
    assert set(arrived(app)) == contained


def test_an_import_without_kafka_ends(app: Application) -> None:
    path, _ = recorded(app, 1)
    process = start_import(app, path, "--connect-timeout", "1", LSB_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert process.wait(DEADLINE_S) == 1
    assert "lsb-import: Kafka at 127.0.0.1:1 has not created the topics, or not answered at all, within 1 s" in log(app)
