"""Are layouts that other organisations designed understood without a question?

`test_mqtt` asks this of SenML and Sparkplug B.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from joiner.cli.proposal.guess import TopicGuess
from joiner.cli.proposal.samples import Registry, Table
from joiner.cli.proposal.settings import compose, try_out
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import StreamSettings
from tests.integration.your_data import AVRO_LAYOUTS, LAYOUTS, Measurement
from tests.unit.joiner.cli.proposal.sampled import file_of, guessed, topic_of, values_of

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
    check_that_all_is_read(topics, measured)


@pytest.mark.parametrize("name", AVRO_LAYOUTS)
def test_both_streams_of_a_layout_in_avro_are_proposed_as_they_were_measured(name: str) -> None:
    layout = AVRO_LAYOUTS[name]
    by_topic: defaultdict[str, list[tuple[str | None, bytes]]] = defaultdict(list)
    measured = [*layout.measurements(random.Random(2), THINGS, 300)]
    for one in measured:
        message = layout.message(one)
        by_topic[message.topic].append((message.key, message.value))
    registry = Registry("http://registry", layout.schemas())
    topics = [guessed(values_of(messages, topic)._replace(registry=registry)) for topic, messages in by_topic.items()]
    assert {topic.format for topic in topics} == {"avro"}
    check_that_all_is_read(topics, measured, [Table("[registry]", {"url": registry.url})])


def check_that_all_is_read(topics: list[TopicGuess], measured: list[Measurement], tables: Sequence[Table] = ()) -> None:
    """Check that the proposed settings read what was measured, and nothing else."""
    proposal = compose(topics, tables)
    assert [(one.rejected, set(one.things)) for one in try_out(proposal, topics)] == [(0, set(THINGS))] * 2
    found: Counter[tuple[str, int, float]] = Counter()
    for placed in proposal.streams:
        settings = StreamSettings.model_validate(placed.settings())
        registry = placed.topic.source.registry
        read = MappedTopic([settings], "ms", None if registry is None else registry.schemas).read
        records = [one for sample in placed.topic.source.samples for one in read(sample.value, 0, 0)]
        found.update((one.record.thing, one.ts_ns, one.record.result) for one in records)
    assert found == Counter((one.thing, one.time_ms * 1_000_000, one.value) for one in measured)
