"""Copies of any messages are right, and the tester finds each way in which one can be wrong."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.topics import TopicFacts
from broker.wire.origin import Origin, encode_origin
from joiner.check.found.copy_log import Committed
from joiner.check.found.evidence import Message
from joiner.check.found.findings import Findings, Tally
from joiner.check.verify.copies import CopiesCheck
from joiner.runtime.repartition import copies
from joiner.runtime.repartition.copies import CopyWriter
from joiner.runtime.repartition.merging import Part
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.repartition.recording import Produced, RecordedCopies, RecordingProducer

STREAM = {"name": "speed", "topic": "plant", "key": "$.id", "time": "$.ts", "value": "$.rpm", "repartition": True}
SOURCES = 3
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, SOURCES - 1),
        st.none() | st.binary(min_size=1, max_size=3),
        st.none()
        | st.binary(max_size=3)
        | st.builds(
            lambda name: json.dumps({"id": name}).encode(), st.sampled_from(["a", "b", "c", "é"]) | st.integers()
        ),
        st.integers(0, 10),
    ),
    max_size=40,
)


def originals_of(drawn: list[tuple[int, bytes | None, bytes | None, int]]) -> list[Message]:
    found: list[Message] = []
    for partition, key, value, at_ms in drawn:
        offset = 2 * sum(one.partition == partition for one in found)
        found.append(Message("plant", partition, offset, at_ms, key, value))
    return found


def copied(settings: JoinerSettings, originals: list[Message], size: int) -> list[Produced]:
    """Return the copies that are made of messages in transactions of about this size."""
    producer = RecordingProducer()
    member: Any = SimpleNamespace(consumer_group_metadata=lambda: "group")
    with patch.object(copies, "make_producer", lambda _kafka, **_more: producer):
        writer = CopyWriter(settings, {"plant": TopicFacts("source-id", SOURCES)}, ManualClock())
    for begin in range(0, len(originals), size):
        parts = []
        for source in range(SOURCES):
            some = [one for one in originals[begin : begin + size] if one.partition == source]
            columns = zip(*((one.offset, one.time_ms, one.value, one.key) for one in some), strict=True)
            if some:
                parts.append(Part("plant", source, Messages.of(*columns)))
        writer.commit(parts, [], member)
    return producer.committed


def judged(settings: JoinerSettings, evidence: RecordedCopies) -> Tally:
    findings = Findings()
    CopiesCheck(settings, evidence).conclude(None, findings)  # type: ignore[arg-type] # it needs no outputs
    return findings.tally("copies", "plant")


def evidence_of(settings: JoinerSettings, originals: list[Message], size: int = 7) -> RecordedCopies:
    ends = {one.partition: Committed(0, one.offset + 1) for one in originals}
    return RecordedCopies(copied(settings, originals, size), originals, ends)


@given(MESSAGES, st.integers(1, 50), st.integers(1, 4), st.sampled_from(["$.id", "kafka.key", "'x'"]))
def test_copies_are_right_whatever_the_messages(drawn: Any, size: int, partitions: int, key: str) -> None:
    settings = make_settings(stream=[STREAM | {"key": key}], partitions=partitions)
    originals = originals_of(drawn)
    found = judged(settings, evidence_of(settings, originals, size))
    assert found.is_right
    assert found.found == found.expected == len(originals)


@given(MESSAGES.filter(bool), st.data())
def test_each_defect_is_found(drawn: Any, data: st.DataObject) -> None:
    settings = make_settings(stream=[STREAM], partitions=3)
    originals = originals_of(drawn)
    evidence = evidence_of(settings, originals)
    at = data.draw(st.integers(0, len(originals) - 1))
    broken = evidence.produced[at]
    defects = {
        "missing": [],
        "doubled": [broken, broken],
        "moved": [broken._replace(partition=(broken.partition + 1) % 3)],
        "altered value": [broken._replace(value=b"other")],
        "altered time": [broken._replace(timestamp=broken.timestamp + 1)],
        "altered key": [broken._replace(key=b"other")],
        "unexpected": [broken, broken._replace(headers=[("lsb-origin", encode_origin(Origin("plant", 0, 10_001)))])],
    }
    defect = data.draw(st.sampled_from(sorted(defects)))
    evidence.produced[at : at + 1] = defects[defect]
    found = judged(settings, evidence)
    assert not found.is_right
    kind = defect.partition(" ")[0]
    assert getattr(found, "altered" if kind == "moved" else kind) == 1


@given(MESSAGES)
def test_copies_in_another_order_than_their_originals_are_found(drawn: Any) -> None:
    settings = make_settings(stream=[STREAM | {"key": "'x'"}], partitions=1)
    originals = [one._replace(partition=0, offset=at) for at, one in enumerate(originals_of(drawn))]
    evidence = evidence_of(settings, originals)
    evidence.produced.reverse()
    assert judged(settings, evidence).is_right == (len(originals) < 2)


@given(MESSAGES, st.integers(0, 60), st.integers(0, 60))
def test_what_retention_has_removed_is_not_missing(drawn: Any, source_low: int, target_low: int) -> None:
    settings = make_settings(stream=[STREAM], partitions=2)
    originals = originals_of(drawn)
    evidence = evidence_of(settings, originals)
    evidence.first = {("plant", 0): source_low, ("lsb.plant.repartition", 1): target_low}
    assert judged(settings, evidence).is_right


@given(MESSAGES, st.integers(0, 60))
def test_what_is_not_committed_is_not_required(drawn: Any, end: int) -> None:
    settings = make_settings(stream=[STREAM], partitions=2)
    originals = originals_of(drawn)
    evidence = evidence_of(settings, originals)
    evidence.produced = [one for one in evidence.produced if int(dict(one.headers)["lsb-origin"].split(b"/")[2]) < end]
    evidence.ends = {source: Committed(0, min(end, one.end)) for source, one in evidence.ends.items()}
    assert judged(settings, evidence).is_right
