"""The layouts of docs/your_data.md are joined with the settings on that page, whatever is damaged or dies."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.joiner_application import (
    PARTITIONS,
    Application,
    Entry,
    application,
    found_of,
    things_over_all_units,
)
from tests.integration.your_data import LAYOUTS
from tests.unit.project.documents import DOCS, blocks

PAGE: Final = DOCS / "your_data.md"
MESSAGES: Final = 400
"""The number of messages in each layout."""
PART: Final = 800
"""The number of messages that are produced at once."""
DAMAGED_FROM: Final = 0.94
REPEATED_FROM: Final = 0.9

JOIN = """
[[join]]
name = "{layout}"
left = "{layout} {left}"
right = "{layout} {right}"
output = "{layout} joined"
lateness = "1s"
"""


def settings_of(layout: str, prefix: str) -> str:
    """Return the settings on the page for a layout, and a join of its streams.

    Every topic gets the prefix. The names of the streams get the name of the layout, because some are in several.
    """
    (text,) = [block.text for block in blocks(PAGE, "toml") if block.info == f"toml {layout}"]
    text = re.sub(r'^name = "', rf"\g<0>{layout} ", text, flags=re.MULTILINE)
    text = re.sub(r'^topic = "', rf"\g<0>{prefix}.", text, flags=re.MULTILINE)
    left, right = (stream.name for stream in LAYOUTS[layout].streams)
    return text + JOIN.format(layout=layout, left=left, right=right)


def entries(app: Application, layout: str, seed: int) -> Iterator[tuple[str, Entry]]:
    """Yield the topics and the content of a layout's messages.

    Some of them are damaged, in the wrong partition, or delivered twice.
    """
    draw = random.Random(seed)
    for message in LAYOUTS[layout].messages(draw, things_over_all_units(6), MESSAGES):
        entry, chance = Entry(message.key, message.value), draw.random()
        if chance >= DAMAGED_FROM:
            cut = draw.randrange(len(message.value))
            elsewhere = (app.unit_of(message.key) + 1) % PARTITIONS
            damaged = [entry._replace(value=message.value[:cut]), entry._replace(partition=elsewhere)]
            entry = draw.choice([*damaged, Entry(message.key, None)])
        yield message.topic, entry
        if REPEATED_FROM <= chance < DAMAGED_FROM:
            yield message.topic, entry


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


@pytest.mark.slow
def test_the_layouts_of_other_organisations_are_joined_with_the_settings_on_the_page(app: Application) -> None:
    app.aligns = "\n".join(settings_of(layout, app.name) for layout in LAYOUTS)
    first = app.start()
    first.wait_for_units()
    # The layouts take turns, so that each part contains messages of all of them.
    by_layout = [[*entries(app, layout, seed)] for seed, layout in enumerate(LAYOUTS)]
    sent = [each[place] for place in range(max(map(len, by_layout))) for each in by_layout if place < len(each)]
    for begin in range(0, len(sent), PART):
        part = sent[begin : begin + PART]
        for topic in dict.fromkeys(topic for topic, _ in part):
            app.produce([entry for to, entry in part if to == topic], topic)
        if begin == PART:
            first.kill()
            first = app.start(instance="two")
    app.wait_until_through()
    findings = app.verify()
    for layout in LAYOUTS:
        assert found_of(findings, "results", layout) > MESSAGES * 9 // 10, layout
        assert found_of(findings, "late records", layout) > 10, layout
    rejected = app.rejected().values()
    topics = {f"{app.name}.{stream.topic}" for layout in LAYOUTS.values() for stream in layout.streams}
    assert {letter.topic for letter in rejected if letter.reason.startswith("not JSON")} == topics
    assert {letter.topic for letter in rejected if "belongs to partition" in letter.reason} == topics
    assert first.stop() == 0
