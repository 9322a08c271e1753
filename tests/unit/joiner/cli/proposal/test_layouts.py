"""Are layouts that other organisations designed understood without a question?"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from joiner.cli.proposal.settings import compose, try_out
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import StreamSettings
from tests.integration.your_data import LAYOUTS
from tests.unit.joiner.cli.proposal.sampled import file_of, guessed, topic_of

THINGS = [f"thing-{number}" for number in range(7)]


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_both_streams_of_a_layout_are_proposed_as_they_were_measured(name: str, *, is_file: bool) -> None:
    layout = LAYOUTS[name]
    by_topic: defaultdict[str, list[tuple[str | None, Any]]] = defaultdict(list)
    measured = [*layout.measurements(random.Random(1), THINGS, 300)]
    for one in measured:
        message = layout.message(one)
        by_topic[message.topic].append((message.key, json.loads(message.value)))
    topics = [
        guessed(file_of((one for _, one in documents), topic) if is_file else topic_of(documents, topic))
        for topic, documents in by_topic.items()
    ]
    proposal = compose(topics)
    assert [(one.rejected, set(one.things)) for one in try_out(proposal, topics)] == [(0, set(THINGS))] * 2
    found: Counter[tuple[str, int, float]] = Counter()
    for placed in proposal.streams:
        settings = StreamSettings.model_validate(placed.settings())
        read = MappedTopic([settings], "ms").read
        records = [one for sample in placed.topic.source.samples for one in read(sample.value, 0, 0)]
        found.update((one.record.thing, one.ts_ns, one.record.result) for one in records)
    assert found == Counter((one.thing, one.time_ms * 1_000_000, one.value) for one in measured)
