"""The page about other organisations' layouts: its messages, its settings, and what is read from such messages."""

from __future__ import annotations

import json
import random
import tomllib
from typing import Any, Final

import pytest

from joiner.mapping.reading import MappedTopic
from joiner.runtime.settings import JoinerSettings
from tests.integration.your_data import AVRO_LAYOUTS, BASE_MS, LAYOUTS, Layout, Measurement
from tests.unit.project.documents import DOCS, blocks, prose

PAGE: Final = DOCS / "your_data.md"
EVERY: Final = {**LAYOUTS, **AVRO_LAYOUTS}
LINES_MAX: Final = 15
"""The maximum number of lines of a layout's settings, without blank ones."""


def block(info: str) -> str:
    """Return the only block of the page with this info string."""
    (found,) = [one.text for one in blocks(PAGE, info.partition(" ")[0]) if one.info == info]
    return found


def settings_of(name: str) -> JoinerSettings:
    """Return the settings of an application that joins the two streams of a layout."""
    left, right = (stream.name for stream in EVERY[name].streams)
    join = {"name": name, "left": left, "right": right, "output": "joined"}
    given: dict[str, Any] = tomllib.loads(block(f"toml {name}"))
    return JoinerSettings.model_validate({"application": {"name": "yours"}, "join": [join], **given})


def examples(layout: Layout) -> list[Measurement]:
    """Return the measurements in the examples on the page, one of each stream."""
    number, time_ms = 41, BASE_MS + 250 - (BASE_MS + 250) % layout.resolution_ms
    return [
        Measurement(stream, "press-4", time_ms + 1000 * place, stream.usual, number + place)
        for place, stream in enumerate(layout.streams)
    ]


def test_the_page_has_a_section_with_a_source_for_every_layout_and_no_other() -> None:
    kinds = [(one.info, kind) for kind in ("json", "toml") for one in blocks(PAGE, kind) if " " in one.info]
    assert [info.split(" ")[1] for info, kind in kinds if kind == "toml"] == list(EVERY)
    assert {info.split(" ")[1] for info, _ in kinds} == set(EVERY)
    sections = prose(PAGE).partition("## AWS IoT Core\n")[2].split("\n## ")
    assert len(sections) == len(LAYOUTS)
    assert [section for section in sections if "](https://" not in section] == []


@pytest.mark.parametrize("name", EVERY)
def test_the_examples_are_what_the_tests_make(name: str) -> None:
    for measured in examples(EVERY[name]):
        shown = json.loads(block(f"json {name} {measured.stream.name}"))
        assert shown == EVERY[name].build(measured)


@pytest.mark.parametrize("name", EVERY)
def test_the_settings_are_short_and_name_the_topics_of_the_messages(name: str) -> None:
    assert len([line for line in block(f"toml {name}").splitlines() if line.strip()]) <= LINES_MAX
    found = [(stream.name, stream.topic) for stream in settings_of(name).stream]
    assert found == [(stream.name, stream.topic) for stream in EVERY[name].streams]


def test_the_join_on_the_page_is_one_of_the_first_layout() -> None:
    given = tomllib.loads(block("toml") + block(f"toml {next(iter(LAYOUTS))}"))
    settings = JoinerSettings.model_validate({"application": {"name": "yours"}, **given})
    assert [join.name for join in settings.join] == ["climate"]


@pytest.mark.parametrize("name", EVERY)
def test_the_settings_read_what_was_measured_and_nothing_else(name: str) -> None:
    layout, settings = EVERY[name], settings_of(name)
    topics = {
        topic: MappedTopic(settings.mapped_streams(topic), settings.events.time_unit, layout.schemas())
        for topic in {stream.topic for stream in layout.streams}
    }
    seen = set()
    for offset, measured in enumerate(layout.measurements(random.Random(1), ["R1", "R2"], 200)):
        message = layout.message(measured)
        assert message.key == measured.thing
        (found,) = topics[message.topic].read(message.value, offset, append_ms=5)
        record, ts_ns = found
        assert (record.thing, record.quantity, record.result) == (measured.thing, measured.stream.name, measured.value)
        assert ts_ns == measured.time_ms * 1_000_000
        seen.add((record.thing, record.quantity))
    assert len(seen) == 4


@pytest.mark.parametrize("name", EVERY)
def test_a_seed_determines_the_messages(name: str) -> None:
    first, again, other = ([*EVERY[name].messages(random.Random(seed), ["R1"], 50)] for seed in (1, 1, 2))
    assert first == again
    assert first != other
