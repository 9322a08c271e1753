"""The readers of external bytes, each with valid input to start from and the permitted outcomes of invalid input.

A target's ``run`` returns the outcome of a case as one word. It catches only the errors that callers are documented to
expect; any other exception is a finding.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from broker.settings import ServiceSettings, SettingsError, load_settings
from broker.wire.records import encode
from connector.formats.events import Parser, dead_letter
from connector.settings import Settings as ConnectorSettings
from db_connector.kafka.target import origin_of, target_of
from db_connector.settings import DbConnectorSettings
from joiner.check.verify.events import Quantity, parse_row
from joiner.runtime import control
from joiner.runtime.kafka.snapshot_log import SnapshotPlace, snapshot_records
from joiner.runtime.migration.claim_signals import Claims
from joiner.runtime.migration.order import Order
from joiner.runtime.migration.protocol import Source
from joiner.runtime.migration.protocol import Target as MoveTarget
from joiner.runtime.model import Checkpoint, StateLog, UnitStopped, checkpoint_key, dangling_key
from joiner.runtime.model import encode as encode_checkpoint
from joiner.runtime.ownership import restore, unit_reports
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding import decoder
from joiner.runtime.task.decoding.decoder import TopicDecoder
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.unit import Unit, load_loops
from simulator.recording import InvalidLineError, read_head, rewrite
from simulator.settings import SettingsError as SimulatorSettingsError
from simulator.settings import read_settings
from tests.fuzz.arrow_targets import arrow_message, read_arrow, read_results, results_message
from tests.fuzz.mqtt_targets import mqtt_messages, parse_messages
from tests.fuzz.mutation import ODD, Mutator
from tests.fuzz.protobuf_targets import protobuf_message, read_protobuf
from tests.fuzz.result_targets import aligned_row, assert_clear, joined, make_point, read_row, read_starts, starts
from tests.unit.db_connector.test_contract import FakeInflux
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, make_settings

EVENT_BYTES_MAX: Final = 256 * 1024
GROWTH_MAX: Final = 100
ALLOWANCE_BYTES: Final = 2048
"""The bounds in docs/connector.md: the bytes sent to Kafka per byte from MQTT, and for an empty message."""

UNITS: Final = ("s", "ms", "us", "ns")
_PARSERS: Final = {unit: Parser(unit, EVENT_BYTES_MAX) for unit in UNITS}


@dataclass(frozen=True)
class Target:
    """A reader under test: ``make`` generates a case, and ``run`` passes it to the production code."""

    name: str
    make: Callable[[Mutator], Any]
    run: Callable[[Any], str]


# Events, from MQTT and from the simulator's file

EVENT: Final = {"Thing": "R0815", "Timestamp": BASE_MS, "id": "e1", "speed": 288.2, "torque": -1, "a b": 0}


def _event(mutator: Mutator) -> tuple[bytes, str]:
    value: dict[str, Any] = dict(EVENT)
    value["Timestamp"] = mutator.one_of(BASE_MS, BASE_MS, 1554096460.25, "2019-04-01T05:26:20.5Z", -1)
    if mutator.is_large():
        name = mutator.one_of("n", "n" * 200, "\x01" * 200)
        value["Thing"] = mutator.one_of("R", name)
        value |= {f"{name}{number}": mutator.one_of(1, None) for number in range(mutator.one_of(100, 3_000, 12_000))}
    return mutator.json(value)[: EVENT_BYTES_MAX + 1], mutator.one_of(*UNITS)


def _parse_event(case: tuple[bytes, str]) -> str:
    """Check that nothing is lost, that the tester parses the payload alike, and that the output grows only linearly."""
    payload, unit = case
    parsed = _PARSERS[unit].parse(payload)
    row = parse_row(payload, unit, EVENT_BYTES_MAX)
    records = [Quantity(one.thing, one.quantity, one.id, parsed.time_ns, one.result) for one in parsed.records]
    assert sorted(row.quantities) == sorted(records)
    assert len(row.refused) == len(parsed.refusals)
    assert parsed.records or parsed.refusals
    size = sum(len(encode(one)) + len(one.thing.encode()) for one in parsed.records)
    size += sum(len(encode(dead_letter(refusal, "machine/states"))) for refusal in parsed.refusals)
    assert size <= GROWTH_MAX * (len(payload) + len("machine/states")) + ALLOWANCE_BYTES
    return "dead letters" if not records else "records and dead letters" if parsed.refusals else "records"


def _replay_line(case: tuple[bytes, str]) -> str:
    line, unit = case
    message = rewrite(line, shift_ns=10**9, round_number=2, time_unit=unit)
    try:
        read_head(line, unit)
    except InvalidLineError as error:
        assert_clear(error)
        assert message.invalid, "a line without a head is no event"
    if message.invalid:
        assert message.payload == line
        return "no event"
    assert len(message.payload) <= 2 * len(line) + ALLOWANCE_BYTES
    return "event"


# Records of the data topic

RECORD: Final = {"thing": "a", "quantity": "speed", "phenomenonTime": BASE_MS, "result": 288.2, "id": "e1"}
WATERMARK: Final = {"thing": "a", "quantity": "speed", "markTime": BASE_MS}
_SETTINGS: Final = make_settings(
    align=[
        {
            "name": "spindle",
            "driver": "torque",
            "columns": {
                "speed": {"rule": "linear", "tolerance": "1s"},
                "last": {"stream": "speed", "on_missing": "drop"},
                "near": {"stream": "speed", "rule": "nearest", "lateness": "1s"},
            },
        }
    ]
)
# The first case would otherwise wait for them, beyond its time limit.
load_loops(_SETTINGS)
_SIDES: Final = ("speed", "torque")


def _records(mutator: Mutator) -> list[bytes | None]:
    values: list[bytes | None] = []
    for number in range(mutator.one_of(1, 2, 8, 8, 2_000 if mutator.is_large() else 3)):
        good = dict(mutator.one_of(RECORD, RECORD, RECORD, WATERMARK), quantity=mutator.one_of(*_SIDES))
        for name in good.keys() & {"phenomenonTime", "markTime"}:
            good[name] = BASE_MS + number
        is_bad = mutator.draw.random() < 0.4
        values.append(mutator.json(good) if is_bad else msgspec.json.encode(good))
    return [None if mutator.draw.random() < 0.01 else value for value in values]


def _read_records(values: list[bytes | None]) -> str:
    """Check that values are decoded identically in a batch and alone, and that the join's results are readable."""
    messages = Messages.of(range(len(values)), [BASE_MS + 1] * len(values), values)
    together, singly = _read(messages), _read_singly(messages)
    assert together == singly
    unit = Unit(_SETTINGS, 0, {DATA: 0})
    effects = unit.apply({DATA: messages}, {DATA: len(values)})
    written = effects.messages(_SETTINGS.topics)
    if _SETTINGS.topics.out in written:
        for value in written[_SETTINGS.topics.out].values.each():
            make_point(value)
    restored = Unit.restore(_SETTINGS, 0, unit.snapshot())
    assert restored.held() == unit.held()
    return "dead letters" if together[0] else "records"


def _read(messages: Messages) -> tuple[Any, ...]:
    found = TopicDecoder(_SETTINGS, DATA, 0, Keys(0, 1)).decode(messages)
    sides = {
        target: [
            [column.tolist() for column in columns] if columns is not None else None
            for columns in (side.columns(), side.watermarks())
        ]
        for target, side in sorted(found.sides.items())
    }
    return len(found.rejected), found.not_selected, found.rejected, sides


def _read_singly(messages: Messages) -> tuple[Any, ...]:
    with _replaced(decoder, "_read_together", lambda *_given: None):
        return _read(messages)


# Offsets of the database connector


def _metadata(mutator: Mutator) -> str | None:
    if mutator.draw.random() < 0.05:
        return None
    return mutator.data(target_of(FakeInflux()).encode()).decode("utf-8", "replace")


def _read_metadata(metadata: str | None) -> str:
    assert origin_of(metadata)
    return "said"


# Control and state records

_MOVE: Final = {"format": 1, "move": "m1", "unit": 0, "to": "green", "instance": "host"}
CONTROL: Final = (
    {"kind": "request", "format": 1, "move": "m1", "units": [0, 3], "to": "green"},
    {"kind": "cancelled", "format": 1, "move": "m1", "units": [0]},
    {"kind": "ready", **_MOVE},
    {"kind": "released", **_MOVE},
    {"kind": "taken", **_MOVE, "late_ms": 3},
    {"kind": "refused", **_MOVE, "why": "no"},
    {"kind": "back", **_MOVE},
    {"kind": "claiming", "format": 1, "move": "", "units": [0], "to": "green", "run": "b-1"},
    {
        "kind": "notserved",
        "format": 1,
        "unit": 0,
        "instance": "a",
        "placement": "p",
        "why": "x",
        "lasts_ms": 9,
        "retry_ms": 5,
    },
)


def _control(mutator: Mutator) -> list[bytes]:
    return [mutator.json(mutator.one_of(*CONTROL)) for _ in range(mutator.one_of(1, 2, 5))]


def _hear(values: list[bytes]) -> str:
    """Pass every readable record to both sides of a move, and to `joiner status`."""
    source, target = Source("process", "a"), MoveTarget("green", "b")
    order, claims = Order("m1", "green", [0, 3], 60.0), Claims("process", "a-1")
    heard = 0
    for at, value in enumerate(values):
        record = control.decode(value)
        if record is None:
            continue
        heard += 1
        now_s = at / 10
        source.hear(record, now_s, {0, 3})
        target.hear(record, now_s, {0, 3})
        order.hear(record, BASE_MS + at)
        if isinstance(record, control.Claiming):
            claims.hear(record, now_s)
    for line in unit_reports.describe((value, BASE_MS) for value in values):
        assert line
    for later_s in (1.0, 100.0):
        source.tick(later_s)
        target.tick(later_s)
        order.due(later_s)
    return "heard" if heard else "passed over"


@cache
def _state() -> tuple[dict[str, bytes], bytes]:
    """Return the records of a unit in the state topic, including a snapshot, and the bytes of that snapshot."""
    unit = Unit(_SETTINGS, 0, {DATA: 0})
    values = [
        msgspec.json.encode({**RECORD, "quantity": quantity, "phenomenonTime": BASE_MS + at, "id": f"e{at}"})
        for at, quantity in enumerate(_SIDES * 5)
    ]
    unit.apply({DATA: Messages.of(range(10), [BASE_MS] * 10, values)}, {DATA: 10})
    data = unit.snapshot()
    fingerprint = _SETTINGS.fingerprint()
    checkpoint = Checkpoint(
        1, "app", 0, "run", "one", "process", {DATA: 10}, {DATA: 0}, {DATA: "id"}, 1, fingerprint, {}, {}, {}
    )
    records, _ = snapshot_records(data, SnapshotPlace(-1, [0, 0]), checkpoint, {})
    kept = {key: value for key, value in records if value is not None}
    return {
        **kept,
        checkpoint_key(0): encode_checkpoint(checkpoint),
        dangling_key(0): encode_checkpoint(checkpoint),
    }, data


def _state_values(mutator: Mutator) -> dict[str, bytes]:
    values, data = _state()
    values = dict(values)
    if mutator.draw.random() < 0.5:
        # The snapshot is damaged before its checksum is computed, as if another program had written it.
        checkpoint = msgspec.json.decode(values[checkpoint_key(0)], type=Checkpoint)
        records, _ = snapshot_records(mutator.data(data), SnapshotPlace(-1, [0, 0]), checkpoint, {})
        values |= {key: value for key, value in records if value is not None}
    else:
        key = mutator.one_of(*sorted(values))
        is_json = not key.rpartition("/")[2].isdigit()
        content = msgspec.json.decode(values[key]) if is_json else None
        values[key] = mutator.json(content) if is_json else mutator.data(values[key])
    if mutator.draw.random() < 0.1:
        del values[mutator.one_of(*sorted(values))]
    return values


def _restore(values: dict[str, bytes]) -> str:
    """Read the state as a claim and a restore do."""
    log = StateLog(0, values)
    try:
        checkpoint = log.checkpoint()
        log.dangling_note()
        log.manifests()
        log.without_newest_snapshot().chunks_in(1)
        SnapshotPlace.after(log)
        if checkpoint is None:
            return "never begun"
        restore._from_snapshot(_SETTINGS, 0, log, checkpoint)  # noqa: SLF001 - avoids Kafka
    except UnitStopped as stopped:
        assert_clear(stopped)
        return "the unit stops"
    return "restored"


# Settings

_TOML: Final = (
    Path(__file__).parents[2].joinpath("lsb.toml").read_bytes()
    + b"""
[[align]]
name = "table"
driver = { quantity = "vaLoad_C11" }
lateness = "500ms"
watermark_scope = "partition"

[align.columns]
angle = { stream = { quantity = "position" }, rule = "linear", period = 360.0, lateness = "1s" }
near = { stream = "mode", rule = "nearest", on_missing = "drop" }

[connector]
linger = "5ms"

[db_connector]
measurement = "joined"

[metrics]
listen = 0

[spark]
master = "local[2]"
"""
)
_MODELS: Final = (JoinerSettings, ConnectorSettings, DbConnectorSettings)
_VALUES: Final = (
    *(one.decode("utf-8", "replace").replace("\0", "") for one in ODD),
    "/dev/zero",
    "/",
    "1s",
    "-1s",
    "9" * 30 + "d",
)


def _settings_file(mutator: Mutator) -> tuple[bytes, type[ServiceSettings], dict[str, str]]:
    lines = _TOML.splitlines()
    for _ in range(mutator.one_of(1, 1, 2, 3)):
        at = mutator.draw.randrange(len(lines))
        name, is_member, _ = lines[at].partition(b"=")
        match mutator.draw.randrange(5):
            case 0 if is_member:
                lines[at] = name + b"= " + mutator.one_of(*ODD)
            case 1 if is_member:
                lines[at] = name + b"= '" + mutator.one_of(*_VALUES).encode("utf-8", "replace")[:300] + b"'"
            case 2:
                lines.insert(mutator.draw.randrange(len(lines)), lines[at])
            case 3:
                del lines[at]
            case _:
                lines[at] = mutator.data(lines[at])
    variables = {}
    if mutator.draw.random() < 0.2:
        name = mutator.one_of(
            "KAFKA__BOOTSTRAP_SERVERS", "TOPICS__PARTITIONS", "JOIN", "KAFKA", "APPLICATION__NAME", "NOBODY__X"
        )
        variables[f"LSB_{name}"] = mutator.one_of(*_VALUES)
    return b"\n".join(lines), mutator.one_of(*_MODELS), variables


def _load(case: tuple[bytes, type[ServiceSettings], dict[str, str]]) -> str:
    text, model, variables = case
    with tempfile.TemporaryDirectory() as folder, _environment(variables):
        file = Path(folder) / "lsb.toml"
        file.write_bytes(text)
        try:
            load_settings(model, file)
        except SettingsError as error:
            assert_clear(error)
            return "a clear error"
    return "settings"


_FLAGS: Final = ("--rate", "--qos", "--topic", "--host", "--port", "--loop", "--rebase", "--skip-first", "--limit")


def _flags(mutator: Mutator) -> list[str]:
    return [f"{mutator.one_of(*_FLAGS)}={mutator.one_of(*_VALUES)}" for _ in range(mutator.one_of(1, 2))]


def _read_flags(flags: list[str]) -> str:
    try:
        with redirect_stderr(io.StringIO()):
            read_settings(flags, {})
    except SimulatorSettingsError as error:
        assert_clear(error)
        return "a clear error"
    except SystemExit:
        # Raised by argparse after printing the usage.
        return "usage"
    return "settings"


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


_EVENTS: Final = Target("events from MQTT", _event, _parse_event)
_DATA: Final = Target("records of the data topic", _records, _read_records)
_STATE: Final = Target("state records", _state_values, _restore)
_CONTROL: Final = Target("control records", _control, _hear)
_RESULTS: Final = Target("results", joined, make_point)

TARGETS: Final = (
    # Weighted by cost: a settings case takes a hundred times as long as an event.
    *[_EVENTS] * 8,
    *[_DATA] * 2,
    *[_STATE] * 3,
    *[_CONTROL] * 5,
    *[_RESULTS] * 4,
    *[Target("aligned rows", aligned_row, read_row)] * 2,
    Target("records in Arrow", arrow_message, read_arrow),
    Target("results in Arrow", results_message, read_results),
    *[Target("MQTT messages in other formats", mqtt_messages, parse_messages)] * 2,
    Target("Protobuf messages", protobuf_message, read_protobuf),
    Target("lines of the simulator", _event, _replay_line),
    Target("offset metadata", _metadata, _read_metadata),
    Target("settings files", _settings_file, _load),
    Target("flags of the simulator", _flags, _read_flags),
    Target("start records", starts, read_starts),
)
