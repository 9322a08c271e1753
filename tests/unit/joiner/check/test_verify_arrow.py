"""Does the tester find every fault in input and results that are Arrow, many in a message?"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from broker.wire.arrow.results import select_results
from joiner.check.found.evidence import Message, RecordedEvidence
from joiner.check.found.findings import Findings
from joiner.check.verify.outputs import verify
from joiner.runtime.model import FORMAT_VERSION, Checkpoint
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.arrow_inputs import (
    GAP_ALL,
    WHOLE,
    arrow_message,
    as_arrow,
    as_json,
    seeded_rows,
    settings_of,
)
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, POWER

BOTH = {**POWER, "name": "kept", "function": "both", "output": "k"}


def pipeline(settings: JoinerSettings, messages: Messages) -> tuple[list[Message], Checkpoint]:
    """Return the input and the output of a unit that has read all messages, and its checkpoint."""
    unit, end = Unit(settings, 0, {DATA: 0}), len(messages)
    found = [Message(DATA, 0, at, BASE_MS, None, value) for at, value in enumerate(messages.values())]
    for begin in range(0, end, 5):
        part = messages.part(begin, min(begin + 5, end))
        for topic, batch in unit.apply({DATA: part}, {DATA: part.last + 1}).messages(settings.topics).items():
            found += [Message(topic, 0, len(found), BASE_MS, key, value) for key, value in batch.each()]
    checkpoint = Checkpoint(
        format=FORMAT_VERSION,
        application=settings.application.name,
        unit=0,
        run="run",
        instance="here",
        site="process",
        offsets={DATA: end},
        start={DATA: 0},
        topics={},
        partitions=1,
        fingerprint=settings.fingerprint(),
        semantics=settings.semantics(),
        counts={},
        joins={},
    )
    return found, checkpoint


def test_names_with_a_nul_make_no_duplicates_on_a_side_that_takes_all() -> None:
    settings = settings_of("json", WHOLE)
    names = {"a": [("q", "e"), ("q", "f")], DATA: [("q\0r", "e"), ("q", "r\0e")]}
    times = {"a": [BASE_MS - 1, BASE_MS + 1], DATA: [BASE_MS, BASE_MS]}
    batches = {
        topic: as_json(
            [
                {"thing": "a", "quantity": quantity, "phenomenonTime": time, "result": 1, "id": identity}
                for (quantity, identity), time in zip(names[topic], times[topic], strict=True)
            ]
        )
        for topic in names
    }
    _, checkpoint = pipeline(settings_of("json", POWER), as_json([]))
    ends = {"a": 2, DATA: 2}
    replace = {"offsets": ends, "start": dict.fromkeys(ends, 0), "fingerprint": settings.fingerprint()}
    checkpoint = msgspec.structs.replace(checkpoint, **replace, semantics=settings.semantics())
    found = [
        Message(topic, 0, at, BASE_MS, None, value)
        for topic, batch in batches.items()
        for at, value in enumerate(batch.values())
    ]
    unit = Unit(settings, 0, dict.fromkeys(ends, 0))
    for topic, batch in unit.apply(batches, ends).messages(settings.topics).items():
        found += [Message(topic, 0, at, BASE_MS, key, value) for at, (key, value) in enumerate(batch.each())]
    findings = check(settings, found, checkpoint)
    assert findings.is_right, findings.examples
    assert unit.counts["duplicates"] == 0
    assert findings.tally("results", WHOLE["name"]).found == unit.counts["pairs"] > 1


def settings_and_input(data_format: str, results: str) -> tuple[JoinerSettings, Messages]:
    rows = seeded_rows(5, 200)
    odd = [dict(row) for row in rows if "mark" not in row][:9]
    changes: list[dict[str, Any]] = [
        {"thing": None},
        {"quantity": None},
        {"result": float("nan")},
        {"result": None},
        {"phenomenonTime": 10**16},
        {"phenomenonTime": None},
        {"phenomenonTime": BASE_MS + 10**9},
        {"id": "x" * 257},
        {"id": None, "quantity": "speed"},
    ]
    for row, change in zip(odd, changes, strict=True):
        row.update(change)
    settings = settings_of(data_format, POWER, BOTH, GAP_ALL, results=results)
    if data_format == "json":
        return settings, as_json(rows)
    messages, _ = as_arrow(rows, random.Random(3), 12)
    values = [*messages.values(), arrow_message(odd), b"no Arrow", b"{", None, arrow_message(odd, with_ids=False)]
    return settings, Messages.of(range(len(values)), [BASE_MS] * len(values), values)


def check(settings: JoinerSettings, found: list[Message], checkpoint: Checkpoint) -> Findings:
    return verify(settings, RecordedEvidence({0: checkpoint}, found, settings.topics))


@pytest.mark.parametrize("data_format", ["json", "arrow"])
@pytest.mark.parametrize("results", ["full", "arrow"])
def test_what_the_joiner_makes_of_batches_is_right(data_format: str, results: str) -> None:
    settings, messages = settings_and_input(data_format, results)
    findings = check(settings, *pipeline(settings, messages))
    assert findings.is_right, findings.examples
    assert findings.tally("results", "power").found > 20


@pytest.mark.parametrize("data_format", ["json", "arrow"])
@pytest.mark.parametrize("fault", ["missing", "doubled"])
def test_a_single_lost_or_doubled_result_of_a_message_is_found(data_format: str, fault: str) -> None:
    settings, messages = settings_and_input(data_format, "arrow")
    found, checkpoint = pipeline(settings, messages)
    results = [at for at, message in enumerate(found) if message.topic == settings.topics.out]
    for at in results[:4]:
        value = found[at].value or b""
        rows = pa.ipc.open_stream(value).read_all().num_rows
        kept = list(range(1, rows)) if fault == "missing" else [0, *range(rows)]
        wrong = [*found[:at], found[at]._replace(value=select_results(value, kept)), *found[at + 1 :]]
        findings = check(settings, wrong, checkpoint)
        assert sum(getattr(tally, fault) for tally in findings.tallies.values()) == 1
        assert not findings.is_right


def changed(value: bytes, column: str, change: Callable[[Any], Any]) -> bytes:
    """Return a message of results with one value of a column changed."""
    with pa.ipc.open_stream(value) as reader:
        batch = reader.read_next_batch()
    at, kind = batch.schema.get_field_index(column), batch.schema.field(column).type
    flat = batch.column(column)
    if pa.types.is_timestamp(kind):
        flat = flat.cast(pa.int64())
    cells = flat.to_pylist()
    cells[0] = change(cells[0])
    plain = pa.array(cells, kind.value_type if pa.types.is_dictionary(kind) else None)
    array = plain.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else plain.cast(kind)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch.set_column(at, batch.schema.field(at), array))
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("thing", lambda _: "other"),
        ("quantity", lambda _: "other"),
        ("phenomenonTime", lambda time: time + 1),
        ("half", lambda half: not half),
        ("result", lambda result: result / 2),
    ],
)
def test_an_altered_field_of_a_result_is_named(column: str, change: Callable[[Any], Any]) -> None:
    settings, messages = settings_and_input("arrow", "arrow")
    found, checkpoint = pipeline(settings, messages)
    at = next(at for at, message in enumerate(found) if b"result" in (message.value or b"") and message.topic != DATA)
    assert found[at].topic == settings.topics.out
    found[at] = found[at]._replace(value=changed(found[at].value or b"", column, change))
    findings = check(settings, found, checkpoint)
    (text,) = findings.examples["altered results"]
    assert ("phenomenonTime" if column == "half" else column) in text


def test_a_message_with_a_kafka_key_is_altered_because_it_should_have_none() -> None:
    settings, messages = settings_and_input("arrow", "arrow")
    found, checkpoint = pipeline(settings, messages)
    at = next(at for at, message in enumerate(found) if message.topic == settings.topics.out)
    found[at] = found[at]._replace(key=b"R1")
    texts = check(settings, found, checkpoint).examples["altered results"]
    assert all(text.endswith("Kafka key: b'R1', expected None") for text in texts)


@pytest.mark.parametrize("column", ["left_offset", "right_row", "join"])
def test_a_result_of_another_pair_is_found(column: str) -> None:
    settings, messages = settings_and_input("arrow", "arrow")
    found, checkpoint = pipeline(settings, messages)
    at = next(at for at, message in enumerate(found) if message.topic == settings.topics.out)
    value = found[at].value or b""
    found[at] = found[at]._replace(value=changed(value, column, lambda it: "gap" if it == "power" else it + 1))
    findings = check(settings, found, checkpoint)
    assert sum(tally.missing for tally in findings.tallies.values()) == 1


def test_a_lost_dead_letter_of_a_row_is_found() -> None:
    settings, messages = settings_and_input("arrow", "full")
    found, checkpoint = pipeline(settings, messages)
    rejected = [at for at, message in enumerate(found) if message.topic == settings.topics.rejected]
    rows = [at for at in rejected if "row" in msgspec.json.decode(found[at].value or b"")]
    assert len(rows) > 10
    for at in (rows[0], rows[-1], next(iter({*rejected} - {*rows}))):
        findings = check(settings, [*found[:at], *found[at + 1 :]], checkpoint)
        assert sum(tally.missing for tally in findings.tallies.values()) == 1


def test_results_that_are_no_results_are_unexpected() -> None:
    settings, messages = settings_and_input("arrow", "arrow")
    found, checkpoint = pipeline(settings, messages)
    found.append(Message(settings.topics.out, 0, 10**6, BASE_MS, None, b"no Arrow"))
    found.append(Message(settings.topics.out, 0, 10**6 + 1, BASE_MS, None, arrow_message([])))
    findings = check(settings, found, checkpoint)
    assert len(findings.examples["unexpected results"]) == 2
