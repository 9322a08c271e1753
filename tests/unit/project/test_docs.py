"""The documents match the code: settings, defaults, topics, keys, wire formats, tests, files and symbols."""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from broker import settings as shared
from broker.kafka.topics import control_topic_spec, data_topic_specs, state_topic_spec
from broker.partitioner import partition_of
from broker.times import mean_text, parse_duration
from broker.wire import records, start_records
from broker.wire.arrow import limits as arrow_limits
from broker.wire.arrow import results as arrow_results
from connector.formats.events import Parser
from connector.settings import ConnectorSettings
from connector.templates import NumberSettings, RawSettings, SenmlSettings, SparkplugSettings
from control.actions import audit
from control.settings import ControlSettings
from db_connector.settings import ConnectorSettings as DbConnectorSettings
from db_connector.settings import DeltaSettings, PostgresqlSettings
from joiner.functions import BUILT_IN
from joiner.mapping.settings import RegistrySettings, StreamSettings
from joiner.operators import AlignSettings, ColumnSettings, GridSettings, JoinSettings, Stream
from joiner.runtime import control, model
from joiner.runtime.ownership import unit_reports
from joiner.runtime.settings import ApplicationSettings, JoinerSettings, ScalingSettings, SparkSettings
from simulator.convert.command import converter_arguments
from simulator.importer.command import import_arguments
from simulator.settings import read_settings
from tests.unit.project.documents import (
    DOCS,
    PACKAGES,
    ROOT,
    blocks,
    pages,
    prose,
    read,
    rows,
    shown,
    sources,
)

ARCHITECTURE: Final = ROOT / "ARCHITECTURE.md"
CONFIGURATION: Final = DOCS / "configuration.md"
FORMATS: Final = DOCS / "formats.md"

MODELS: Final[dict[str, type[BaseModel]]] = {
    "kafka": shared.KafkaSettings,
    "mqtt": shared.MqttSettings,
    "influxdb": shared.InfluxdbSettings,
    "postgresql": PostgresqlSettings,
    "delta": DeltaSettings,
    "topics": shared.TopicSettings,
    "events": shared.EventSettings,
    "metrics": shared.MetricsSettings,
    "application": ApplicationSettings,
    "scaling": ScalingSettings,
    "spark": SparkSettings,
    "join": JoinSettings,
    "align": AlignSettings,
    "stream": StreamSettings,
    "registry": RegistrySettings,
    "connector": ConnectorSettings,
    "db_connector": DbConnectorSettings,
    "control": ControlSettings,
}

TABLES: Final[dict[str, tuple[str, str, type[BaseModel]]]] = {
    # Where each table is in configuration.md: its heading, and the title of its first column.
    **{name: (name, "setting", model) for name, model in MODELS.items()},
    "a stream": ("join", "stream", Stream),
    "the grid of an align": ("align", "grid", GridSettings),
    "a column of an align": ("align", "column", ColumnSettings),
    "topics of plain numbers": ("connector", "number", NumberSettings),
    "topics of SenML": ("connector", "senml", SenmlSettings),
    "topics of Sparkplug B": ("connector", "sparkplug", SparkplugSettings),
    "topics of raw messages": ("connector", "raw", RawSettings),
}

HOST_NAME: Final = ApplicationSettings.model_fields["instance"].default_factory
FACTORIES: Final[dict[Any, str]] = {dict: "{}", list: "[]", HOST_NAME: "the host's name"}


def documented(table: str) -> dict[str, list[str]]:
    """Return the rows of a settings table, by setting."""
    section, title, _ = TABLES[table]
    found = [row.cells for row in rows(CONFIGURATION) if row.section == section and row.title == title]
    return {cells[0].split("`")[1]: cells for cells in found}


def documented_default(cell: str) -> object:
    """Return the default that a table cell states: a number (durations in ns), None, or a string."""
    text = cell.strip("`")
    if re.fullmatch(r"\d+(ns|us|ms|s|min|h|d)", text):
        return parse_duration(text)
    if text.isdecimal():
        return int(text)
    return None if cell == "none" else text


def real_default(field: FieldInfo) -> object:
    """Return a field's default, in the form that `documented_default` returns."""
    if field.default_factory is not None:
        return FACTORIES[field.default_factory]
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    value = field.default[0] if isinstance(field.default, tuple) else field.default
    return None if value == "" else value


def limits(field: FieldInfo) -> set[str]:
    """Return the limits that the documented range of a field must name: its bounds, or its choices."""
    bounds = [getattr(rule, name) for rule in field.metadata for name in ("ge", "le") if hasattr(rule, name)]
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return {str(limit) for limit in (*bounds, *choices)}


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_is_documented_and_no_other(table: str) -> None:
    assert list(documented(table)) == list(TABLES[table][2].model_fields)


@pytest.mark.parametrize("table", TABLES)
def test_the_documented_defaults_are_the_defaults(table: str) -> None:
    fields = TABLES[table][2].model_fields
    wrong = {
        name: (cells[1], fields[name].default)
        for name, cells in documented(table).items()
        if documented_default(cells[1]) != real_default(fields[name])
    }
    assert wrong == {}


@pytest.mark.parametrize("table", TABLES)
def test_the_documented_ranges_name_every_limit(table: str) -> None:
    fields = TABLES[table][2].model_fields
    missing = {
        name: limits(fields[name]) - set(re.findall(r"\w+", cells[2])) for name, cells in documented(table).items()
    }
    assert {name: left for name, left in missing.items() if left} == {}


def test_every_section_has_its_table() -> None:
    assert set(MODELS) == shared.SECTIONS
    headings = {line.removeprefix("## ") for line in read(CONFIGURATION).splitlines() if line.startswith("## ")}
    assert set(MODELS) <= headings


CHANGED: Final[dict[str, dict[str, Any]]] = {
    # A different value for each setting that a joiner reads, except those in [kafka].
    "topics": {
        "data": "other", "out": "other", "late": "other", "rejected": "other", "unmatched": "other",
        "partitions": 7, "replication_factor": 3, "retention": "1d", "data_format": "arrow",
    },
    "events": {"time_unit": "ns", "event_bytes_max": 2048},
    "application": {
        "name": "other", "instance": "other", "site": "other", "start": "latest", "max_future_skew": "2d",
        "batch_records_max": 7, "commit_interval": "1s", "snapshot_records": 7, "snapshot_interval": "1s",
        "watermark_interval": "1s", "buffer_records_max": 7, "buffer_bytes_max": 7, "native": False,
        "results": "arrow", "standbys": 1, "failure_timeout": "2s", "session_timeout": "20s",
        "transaction_timeout": "30s", "replicas": 2,
    },
    "join": {
        "name": "other", "left": "c", "right": "c", "function": "product", "output": "other", "tolerance": "1s",
        "lateness": "1s", "direction": "nearest", "driver": "left", "watermark_scope": "partition",
        "emit_unmatched": "left",
    },
    "align": {
        "name": "other", "driver": "c", "grid": {"every": "1s"}, "result": "x", "function": "own:f",
        "lateness": "1s", "watermark_scope": "partition", "columns": {"y": {}},
    },
    "stream": {
        "name": "y", "topic": "other", "key": "$.l", "time": "kafka.timestamp", "time_unit": "s", "value": "$.w",
        "id": "$.i", "where": "$.w", "format": "json_schema", "repartition": True,
    },
    "registry": {
        "url": "http://other", "user": "me", "password": "secret", "password_file": ROOT / "LICENSE",
        "ca_file": None, "timeout": "1s", "unknown_schema": "reject",
    },
}  # fmt: skip

ALONG: Final[dict[str, dict[str, Any]]] = {
    # What else a setting of an align needs.
    "grid": {"driver": None},
    "result": {"driver": None, "grid": {"every": "1s"}, "columns": {"x": {"on_missing": "drop"}}},
}


def fingerprint(section: str, name: str | None = None, *, beside: str = "") -> str:
    """Return the fingerprint of settings in which ``name`` has another value. ``beside``: what else they have."""
    values: dict[str, Any] = {other: {} for other in CHANGED} | {"registry": {"user": "you"}}
    values["join"] = {"name": "a", "left": "x", "right": "y", "output": "z"}
    values["align"] = {"name": "b", "driver": "t", "columns": {"x": {}}}
    values["stream"] = {"name": "x", "topic": "u", "key": "$.k", "time": "$.t", "value": "$.v"}
    if section == "align":
        values[section] = values[section] | ALONG.get(beside, {})
    if name is not None:
        values[section] = values[section] | {name: CHANGED[section][name]}
    lists = {one: [values[one]] if one in {"join", section} else [] for one in ("join", "align", "stream")}
    return JoinerSettings.model_validate(values | lists).fingerprint()


@pytest.mark.parametrize("section", CHANGED)
def test_the_marked_settings_are_those_that_change_the_fingerprint(
    section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LSB_TOPICS__DATA", "LSB_EVENTS__TIME_UNIT", "LSB_APPLICATION__MAX_FUTURE_SKEW"):
        monkeypatch.delenv(variable, raising=False)
    assert CHANGED[section].keys() == set(MODELS[section].model_fields)
    changing = {
        name
        for name in CHANGED[section]
        if fingerprint(section, name, beside=name) != fingerprint(section, beside="result" if name == "result" else "")
    }
    marked = {name for name, cells in documented(section).items() if "◆" in cells[0]}
    assert marked == changing


def test_every_toml_example_is_a_valid_setting_file() -> None:
    texts = [read(ROOT / "lsb.toml"), *(block.text for page in pages() for block in blocks(page, "toml"))]
    assert len(texts) > 2
    for text in texts:
        for name, section in tomllib.loads(text).items():
            for values in section if isinstance(section, list) else [section]:
                MODELS[name].model_validate(values)


def test_every_built_in_function_is_documented() -> None:
    assert {name for name in BUILT_IN if f"`{name}`" not in documented("join")["function"][2]} == set()


def test_every_flag_of_the_simulator_is_documented_with_variable_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        read_settings(["--help"], {})
    text = re.sub(r"\n {10,}", " ", capsys.readouterr().out)
    flags = re.findall(r"^  (--[\w-]+).*\((\w+)(?:, default (\S+))?\)$", text, re.MULTILINE)
    told = [[cell.strip("`") for cell in row.cells[:3]] for row in rows(CONFIGURATION) if row.title == "flag"]
    assert flags
    assert told == [[flag, variable, default or "none"] for flag, variable, default in flags]


def test_every_argument_of_the_converter_is_documented() -> None:
    section = read(CONFIGURATION).partition("### Replaying a table")[2].partition("\n##")[0]
    options = set(re.findall(r"--[a-z][a-z-]*", converter_arguments().format_help().partition("\nexamples:")[0]))
    assert set(re.findall(r"--[a-z][a-z-]*", section)) - {"--events"} == options - {"--help", "--version"}


def test_every_argument_of_the_import_is_documented() -> None:
    section = read(CONFIGURATION).partition("### Importing a file")[2].partition("\n##")[0]
    options = set(re.findall(r"--[a-z][a-z-]*", import_arguments().format_help().partition("\nexamples:")[0]))
    assert set(re.findall(r"--[a-z][a-z-]*", section)) == options - {"--help", "--version"}


def test_every_topic_is_in_the_formats() -> None:
    topics = shared.TopicSettings()
    joins = [{"name": "a", "left": "b", "right": "c", "output": "d"}]
    given = JoinerSettings.model_validate({"application": {"name": "application"}, "join": joins})
    audit_topic = replace(audit.audit_topic_spec(given), name="<application>.audit")
    specs = [
        *data_topic_specs(topics),
        state_topic_spec("<application>", topics),
        control_topic_spec("<application>", topics),
        audit_topic,
    ]
    text = read(FORMATS)
    assert [spec.name for spec in specs if f"| `{spec.name}`" not in text] == []
    required = {f"`{name}={value}`" for spec in specs for name, value in spec.required.items()}
    assert {setting for setting in required if setting not in text} == set()


def test_every_key_of_the_state_topic_is_in_the_formats() -> None:
    unit, slot, index = 71, 82, 93
    of_unit = [model.checkpoint_key(unit), model.dangling_key(unit)]
    keys = [*of_unit, model.manifest_key(unit, slot), model.chunk_key(unit, slot, index)]
    names = {str(unit): "<unit>", str(slot): "<slot>", str(index): "<i>"}
    forms = {re.sub(r"\d+", lambda digits: names[digits[0]], key) for key in keys}
    told = {row.cells[0].strip("`") for row in rows(FORMATS) if row.section == "State topic" and row.title == "key"}
    assert told == forms


def test_every_limit_of_the_wire_is_in_the_formats() -> None:
    limits_of_wire = (
        records.NAME_LENGTH_MAX,
        records.RECORD_BYTES_MAX,
        records.BRACKETS_MAX,
        records.REJECTED_BYTES_MAX,
        arrow_limits.ROWS_MAX,
        arrow_limits.EXPANDED_BYTES_MAX,
        arrow_results.MESSAGE_BYTES_MAX,
    )
    numbers = set(re.findall(r"\d+", prose(FORMATS)))
    assert {str(limit) for limit in (*limits_of_wire, model.CHUNK_BYTES_MAX)} <= numbers


LEFT_OUT: Final[dict[type[msgspec.Struct], set[str]]] = {
    control.Heartbeat: {"capacity", "claims", "failed", "leaving", "mixed"},
    control.Drain: {"drained"},
}
"""The members of records about instances that their examples do not show."""

FORMS: Final[dict[str, tuple[Callable[[bytes], Any], type[msgspec.Struct], set[str]]]] = {
    # How each example is read, the type whose members it must show, and members that are described in prose instead.
    "record": (lambda text: records.decode_data(text, "ms")[0], records.Record, set()),
    "mark": (lambda text: records.decode_data(text, "ms")[0], records.Watermark, set()),
    "start": (msgspec.json.Decoder(start_records.StartRecord).decode, start_records.StartRecord, set()),
    "joined": (records.decode_joined, records.Joined, {"tie"}),
    "row": (records.decode_joined, records.AlignedRow, {"tie"}),
    "late": (msgspec.json.Decoder(records.Late).decode, records.Late, {"row"}),
    "unmatched": (msgspec.json.Decoder(records.Unmatched).decode, records.Unmatched, {"row"}),
    "rejected": (records.decode_rejected, records.Rejected, {"row"}),
    "progress": (model.decode_checkpoint, model.Checkpoint, {"stopped", "founded", "noted_at"}),
    "manifest": (model.decode_manifest, model.Manifest, set()),
    "control notserved": (unit_reports.decode, control.NotServed, set()),
    **{f"control {kind.__struct_config__.tag}": (control.decode, kind, set()) for kind in get_args(control.Record)},
    # Members that have their default value are left out of these.
    **{
        f"control {kind.__struct_config__.tag}": (control.decode_member, kind, {"format"} | LEFT_OUT.get(kind, set()))
        for kind in get_args(control.MemberRecord)
    },
}


def example(form: str) -> bytes:
    (found,) = [block.text for block in blocks(FORMATS, "json") if block.info == f"json {form}"]
    return found.encode()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_an_example_that_is_read_and_shows_all_members(form: str) -> None:
    decode, struct, in_words = FORMS[form]
    text = example(form)
    message = decode(text)
    tag = {struct.__struct_config__.tag_field} - {None}
    assert set(json.loads(text)) == (set(struct.__struct_encode_fields__) | tag) - in_words
    assert json.loads(msgspec.json.encode(message)) == json.loads(text)
    assert [member for member in in_words if f"`{member}`" not in prose(FORMATS)] == []


SHORT_FORMS: Final[dict[str, Callable[[bytes], msgspec.Struct | None]]] = {
    # Records whose members with their default values are left out.
    **{f"control {kind.__struct_config__.tag}": control.decode_member for kind in get_args(control.MemberRecord)},
    **{f"audit {kind.__struct_config__.tag}": audit.decode for kind in get_args(audit.Record)},
    "audit putback": audit.decode_put_back,
}


@pytest.mark.parametrize("form", SHORT_FORMS)
def test_every_short_form_has_an_example_that_is_read_and_written_back(form: str) -> None:
    text = example(form)
    message = SHORT_FORMS[form](text)
    assert message is not None
    assert message.__struct_config__.tag == form.split()[1]
    assert json.loads(msgspec.json.encode(message)) == json.loads(text)


def test_the_example_event_is_one() -> None:
    parsed = Parser("ms", 256 * 1024).parse(example("event").strip())
    assert [record.quantity for record in parsed.records] == ["actSpeed_C11", "vaTorque_C11"]
    assert parsed.refusals == []
    assert parsed.thing == "R0815"
    assert partition_of(b"R0815", 5) == 4


def test_the_example_result_follows_from_its_two_records() -> None:
    joined = json.loads(example("joined"))
    left, right = joined["left"]["phenomenonTime"] * 10**6, joined["right"]["phenomenonTime"] * 10**6
    assert mean_text(left, right, "ms") == str(joined["phenomenonTime"])
    power = importlib.import_module("joiner.functions").spindle_power
    columns = [type("Side", (), {"result": joined[side]["result"]}) for side in ("left", "right")]
    assert power(*columns) == joined["result"]
    assert joined["id"] == records.pair_id("power", 4, 0, 1)


def test_the_example_dead_letter_is_what_its_value_gives() -> None:
    shown = records.decode_rejected(example("rejected"))
    value, where = shown.value.encode(), (shown.partition, shown.offset)
    again = records.reject(
        value, shown.reason, source=shown.source, topic=shown.topic, partition=where[0], offset=where[1]
    )
    assert again == shown
    with pytest.raises(records.Unreadable, match=re.escape(shown.reason)):
        records.decode_data(shown.value.encode(), "ms")


def test_the_example_fingerprint_is_that_of_its_semantics() -> None:
    found = model.decode_checkpoint(example("progress"))
    text = json.dumps(found.semantics, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert hashlib.sha256(text.encode()).hexdigest() == found.fingerprint
    settings = shared.load_settings(JoinerSettings, ROOT / "lsb.toml")
    assert found.semantics == settings.semantics()


def test_every_test_that_the_architecture_names_exists() -> None:
    named, in_docs = (
        {name for page in of for name in re.findall(r"`(test_\w+)`", read(page))}
        for of in ([ARCHITECTURE], sorted(DOCS.glob("*.md")))
    )
    existing = {path.stem for path in (ROOT / "tests").rglob("test_*.py")} | {
        node.name
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(read(path)))
        if isinstance(node, ast.FunctionDef)
    }
    assert len(named) >= 118
    assert len(in_docs) > 50
    assert (named | in_docs) - existing == set()


def test_every_architecture_invariant_names_what_holds_it() -> None:
    invariants = [row.cells for row in rows(ARCHITECTURE) if row.title == "invariant"]
    assert len(invariants) >= 58
    assert {len(cells) for cells in invariants} == {2}
    assert [rule for rule, held_by in invariants if not re.search(r"`test_\w+`|`tests/[\w/]+\.py`", held_by)] == []


def test_every_file_and_symbol_that_the_architecture_names_exists() -> None:
    spans = re.findall(r"`([^`\n]+)`", prose(ARCHITECTURE))
    files = {span for span in spans if re.fullmatch(r"[\w/]+\.py", span)}
    known = {shown(path) for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")}
    known |= {shown(path) for path in sources()}
    assert {file for file in files if not any(f"/{path}".endswith(f"/{file}") for path in known)} == set()
    defined = {
        node.name
        for path in sources()
        for node in ast.walk(ast.parse(read(path)))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    listed = re.findall(r"`([A-Z]\w+(?:\.\w+)?|[a-z]+_[a-z_]+)`", prose(ARCHITECTURE))
    not_symbols = {*PACKAGES, "read_committed"}
    parts = {part for name in listed if name not in not_symbols for part in name.split(".")}
    assert {part for part in parts if part not in defined and not part.startswith("test_")} == set()
