"""Builds samples of topics and files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from broker.partitioner import partition_of
from broker.times import parse_time
from joiner.cli.proposal.guess import Answers, TopicGuess, guess
from joiner.cli.proposal.samples import Sample, Source

NOW_NS = parse_time("2026-11-28T07:00:00Z", "ns")
AT_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z."""


def file_of(documents: Iterable[Any], name: str = "plant") -> Source:
    values = [json.dumps(one).encode() for one in documents]
    return Source(name, 0, [Sample(0, number, 0, None, value) for number, value in enumerate(values)])


def topic_of(documents: Iterable[tuple[str | None, Any]], name: str = "plant", partitions: int = 3) -> Source:
    """Return a topic with these keys and contents. Messages without a key are in partition 0."""
    samples = []
    for number, (key, document) in enumerate(documents):
        partition = 0 if key is None else partition_of(key.encode(), partitions)
        value = json.dumps(document).encode()
        samples.append(Sample(partition, number, AT_MS + number, None if key is None else key.encode(), value))
    return Source(name, partitions, samples)


def guessed(source: Source, *, time_unit: str | None = None, **paths: str) -> TopicGuess:
    given = {name: [path] for name, path in paths.items()}
    return guess(source, Answers(time_unit=time_unit, **given), NOW_NS)
