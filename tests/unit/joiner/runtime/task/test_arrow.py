"""Do many records in one message give the same output as in a message each?"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from broker.times import point_time
from broker.wire.arrow.results import decode_results
from broker.wire.records import decode_joined
from joiner.runtime.model import UnitStopped
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.effects import Effects
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
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, POWER, thing_of


def run(settings: JoinerSettings, messages: Messages, cuts: Sequence[int] = (), *, restoring: bool = False) -> Effects:
    """Return the effects of the messages, in batches that end at ``cuts``, with a restore after each."""
    unit, effects = Unit(settings, 0, dict.fromkeys(settings.input_topics, 0)), Effects()
    for begin, end in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        part = messages.part(begin, end)
        if len(part):
            effects.add(unit.apply({DATA: part}, {DATA: part.last + 1}))
        if restoring:
            saved = unit.snapshot()
            unit = Unit.restore(settings, 0, saved)
            assert unit.snapshot() == saved
    return effects


def told(effects: Effects, settings: JoinerSettings, positions: Sequence[str] | None) -> list[Any]:
    """Return all effects, with the positions in ids replaced by the numbers of the records."""
    number = None if positions is None else {position: str(at) for at, position in enumerate(positions)}
    found = []
    for topic, batch in effects.messages(settings.topics).items():
        for _, value in batch.each():
            content = msgspec.json.decode(value)
            if number is not None:
                content["id"] = ":".join(number.get(part, part) for part in content["id"].split(":"))
                content["offset"] = (
                    int(number[f"{content['offset']}.{content.pop('row')}"]) if "offset" in content else 0
                )
            else:
                content.setdefault("offset", 0)
            found.append((topic, content))
    return sorted(found, key=str)


@pytest.mark.parametrize("seed", range(6))
def test_records_in_batches_give_what_they_give_one_by_one(seed: int) -> None:
    draw, rows = random.Random(seed), seeded_rows(seed, 120)
    one_by_one = settings_of("json", POWER, GAP_ALL)
    expected = told(run(one_by_one, as_json(rows)), one_by_one, None)
    assert len({topic for topic, _ in expected}) == 4, "results, late, unmatched records, failed pairs"
    settings = settings_of("arrow", POWER, GAP_ALL)
    for most in (1, 7, 200):
        messages, positions = as_arrow(rows, draw, most)
        cuts = sorted(draw.randint(0, len(messages)) for _ in range(3))
        assert told(run(settings, messages, cuts), settings, positions) == expected
        assert told(run(settings, messages, cuts, restoring=True), settings, positions) == expected


def told_results(effects: Effects, settings: JoinerSettings) -> list[tuple[Any, ...]]:
    """Return the fields of all results, from JSON or from Arrow."""
    found: list[tuple[Any, ...]] = []
    for _, value in effects.messages(settings.topics)[settings.topics.out].each():
        if settings.application.results == "arrow":
            read = decode_results(value)
            values = [{"left": one[0], "right": one[1]} if isinstance(one, tuple) else one for one in read.value]
            found += zip(read.ids(), read.thing, read.quantity, read.time_ns, read.half, values, read.tie, strict=True)
        else:
            result = decode_joined(value)
            time_ns, half = point_time(bytes(result.phenomenonTime), settings.events.time_unit)
            found.append((result.id, result.thing, result.quantity, time_ns, half, result.result, result.tie))
    return sorted(found, key=str)


BOTH = {**POWER, "name": "kept", "function": "both", "output": "k"}


@pytest.mark.parametrize("data_format", ["json", "arrow"])
def test_results_in_arrow_say_what_those_in_json_say(data_format: str) -> None:
    rows = seeded_rows(11, 300)
    messages = as_arrow(rows, random.Random(1), 20)[0] if data_format == "arrow" else as_json(rows)
    full, arrow = (settings_of(data_format, POWER, BOTH, GAP_ALL, results=results) for results in ("full", "arrow"))
    expected, effects = run(full, messages), run(arrow, messages)
    assert told_results(effects, arrow) == told_results(expected, full)
    assert effects.pairs == expected.pairs == len(expected.joined)
    others = [topic for topic in expected.messages(full.topics) if topic != full.topics.out]
    assert others
    for topic in others:
        assert effects.messages(arrow.topics)[topic].each() == expected.messages(full.topics)[topic].each()


def test_a_message_of_results_is_limited_in_size_whatever_the_names() -> None:
    settings = settings_of("arrow", results="arrow")
    rows = [
        {"thing": "é" * 250 + str(number % 3000), "quantity": quantity, "phenomenonTime": BASE_MS, "result": 1.0}
        for quantity in ("speed", "torque")
        for number in range(6000)
    ]
    values = [arrow_message(rows[at : at + 3000], with_ids=False) for at in range(0, len(rows), 3000)]
    effects = run(settings, Messages.of(range(len(values)), [BASE_MS] * len(values), values))
    sizes = [len(value) for value in effects.joined.values.each()]
    assert max(sizes) < 600_000
    assert sum(len(decode_results(value).thing) for value in effects.joined.values.each()) == effects.pairs > 6000


def test_a_record_without_an_id_is_known_by_its_position() -> None:
    settings = settings_of("arrow", {**POWER, "emit_unmatched": "both"})
    rows = [
        {"thing": "a", "quantity": q, "phenomenonTime": BASE_MS, "result": 2.0} for q in ("speed", "speed", "torque")
    ]
    values = [b'{"mark":5}', arrow_message(rows, with_ids=False)]
    effects = run(settings, Messages.of([3, 4], [BASE_MS] * 2, values), [1], restoring=True)
    found = [msgspec.json.decode(value) for value in effects.joined.values.each()]
    assert [(one["id"], one["left"]["id"], one["right"]["id"]) for one in found] == [
        ("power:0:4.0:4.2", "4.0", "4.2"),
        ("power:0:4.1:4.2", "4.1", "4.2"),
    ]


def test_equal_rows_without_ids_are_no_duplicates() -> None:
    settings = settings_of("arrow")
    row = {"thing": "a", "quantity": "speed", "phenomenonTime": BASE_MS, "result": 2.0}
    unit = Unit(settings, 0, {DATA: 0})
    value = arrow_message([row, row], with_ids=False)
    unit.apply({DATA: Messages.of([0, 1], [BASE_MS] * 2, [value, value])}, {DATA: 2})
    assert (unit.counts["records"], unit.counts["duplicates"], unit.held()) == (4, 0, 4)


def test_the_bad_rows_of_a_message_are_dead_letters_and_the_others_are_joined() -> None:
    settings = settings_of("arrow").model_copy()
    topics = settings.topics.model_copy(update={"partitions": 5})
    settings = settings.model_copy(update={"topics": topics})
    here, elsewhere = thing_of(0, 5), thing_of(3, 5)
    fine = {"thing": here, "quantity": "speed", "phenomenonTime": BASE_MS, "result": 1.0, "id": "i"}
    rows = [
        fine,
        fine | {"thing": None},
        fine | {"quantity": ""},
        fine | {"phenomenonTime": None},
        fine | {"phenomenonTime": 10**17},
        fine | {"result": None},
        fine | {"result": float("nan")},
        fine | {"result": float("-inf")},
        fine | {"id": "x" * 300},
        fine | {"thing": elsewhere},
        fine | {"phenomenonTime": BASE_MS + 2 * 86_400_000},
        fine | {"quantity": "other", "thing": elsewhere},
        fine | {"quantity": "torque", "id": None},
    ]
    effects = run(settings, Messages.of([7], [BASE_MS], [arrow_message(rows)]))
    assert [json.loads(value)["id"] for value in effects.joined.values.each()] == ["power:0:7.0:7.12"]
    assert [(one.offset, one.row) for one in effects.rejected] == [(7, row) for row in range(1, 11)]
    assert [one.id for one in effects.rejected] == [f"{DATA}:0:7.{row}" for row in range(1, 11)]
    reasons = [
        "thing is null",
        "quantity is 0",
        "phenomenonTime is null",
        "outside the years",
        "result is null",
    ]
    reasons += ["NaN", "-Infinity", "id is 300"]
    reasons += ["belongs to partition 3, but the message is in partition 0", "max_future_skew"]
    for dead_letter, reason in zip(effects.rejected, reasons, strict=True):
        assert reason in dead_letter.reason
    assert json.loads(effects.rejected[5].value) == fine | {"result": "NaN"}


@pytest.mark.parametrize("value", [None, b"", b"{", b"not Arrow", b'{"thing":"a"}', arrow_message([])[:-30]])
def test_a_message_that_is_not_arrow_is_one_dead_letter(value: bytes | None) -> None:
    effects = run(settings_of("arrow"), Messages.of([2], [BASE_MS], [value]))
    (dead_letter,) = effects.rejected
    assert (dead_letter.id, dead_letter.offset, dead_letter.row) == (f"{DATA}:0:2", 2, -1)
    assert effects.records == 1


def test_a_single_record_in_json_is_refused_where_messages_hold_many() -> None:
    row = {"thing": "a", "quantity": "speed", "phenomenonTime": BASE_MS, "result": 2.0, "id": "i"}
    (dead_letter,) = run(settings_of("arrow"), as_json([row])).rejected
    assert "must be a watermark" in dead_letter.reason


def test_a_snapshot_of_json_records_does_not_restore_arrow_records() -> None:
    unit = Unit(settings_of("json", POWER), 0, {DATA: 0})
    sent = as_json(seeded_rows(0, 9))
    unit.apply({DATA: sent}, {DATA: len(sent)})
    with pytest.raises(UnitStopped, match="cannot be read: its rows are not in short form; start over"):
        Unit.restore(settings_of("arrow", POWER), 0, unit.snapshot())


@pytest.mark.parametrize("seed", range(2))
def test_a_side_may_take_all_quantities_of_batches(seed: int) -> None:
    rows = [row for row in seeded_rows(seed, 100) if "mark" not in row]
    speeds = json.dumps({"mark": 1}).encode()
    for restoring in (False, True):
        told_by = {}
        for data_format in ("json", "arrow"):
            settings = settings_of(data_format, {**WHOLE, "emit_unmatched": "right"}, {**POWER, "name": "one"})
            messages, positions = (
                as_arrow(rows, random.Random(1), 9) if data_format == "arrow" else (as_json(rows), None)
            )
            unit, effects = Unit(settings, 0, {"a": 0, DATA: 0}), Effects()
            effects.add(unit.apply({"a": Messages.of([0], [BASE_MS], [speeds])}, {"a": 1}))
            effects.add(unit.apply({DATA: messages.part(0, 9)}, {DATA: 9}))
            if restoring:
                unit = Unit.restore(settings, 0, unit.snapshot())
            effects.add(unit.apply({DATA: messages.part(9, len(messages))}, {DATA: len(messages)}))
            mark = b'{"mark":%d}' % (BASE_MS + 1000)
            effects.add(unit.apply({"a": Messages.of([1], [BASE_MS], [mark])}, {"a": 2}))
            told_by[data_format] = told(effects, settings, positions)
        assert told_by["json"] == told_by["arrow"]
