"""Checks the contents of an in-memory broker with the project's checker, which is independent of the runner.

At any moment, even while transactions are in flight, the committed outputs must be exactly those that are certain at
the vectors of the committed checkpoints. Input that retention has removed is read from the archive of the in-memory
broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joiner.check.found.evidence import Message, RecordedEvidence
from joiner.check.report import render_findings
from joiner.check.verify.outputs import verify
from joiner.runtime.model import Checkpoint, checkpoint_key, decode_checkpoint
from tests.simulation.memory_kafka import MemoryKafka

if TYPE_CHECKING:
    from joiner.check.found.findings import Findings
    from joiner.runtime.settings import JoinerSettings


def committed_checkpoint(kafka: MemoryKafka, settings: JoinerSettings, unit: int) -> Checkpoint | None:
    """Return the unit's newest committed checkpoint, even if its marker is not yet in the log."""
    key = checkpoint_key(unit).encode()
    for entry in reversed(kafka.log(settings.state_topic, unit).archive):
        if entry.key == key and entry.is_committed and entry.value is not None:
            return decode_checkpoint(entry.value)
    return None


def runs_in_order(kafka: MemoryKafka, settings: JoinerSettings, unit: int) -> list[str]:
    """Return the run of each committed checkpoint of the unit, in order."""
    key = checkpoint_key(unit).encode()
    entries = kafka.log(settings.state_topic, unit).archive
    return [
        decode_checkpoint(entry.value).run
        for entry in entries
        if entry.key == key and entry.is_committed and entry.value is not None
    ]


def all_progress(kafka: MemoryKafka, settings: JoinerSettings) -> dict[int, Checkpoint]:
    """Return the committed checkpoints by unit, for the units that have one."""
    found = {unit: committed_checkpoint(kafka, settings, unit) for unit in range(settings.topics.partitions)}
    return {unit: checkpoint for unit, checkpoint in found.items() if checkpoint is not None}


def stable_ends(kafka: MemoryKafka, settings: JoinerSettings, unit: int) -> dict[str, int]:
    """Return the last stable offsets of the unit's inputs."""
    return {topic: kafka.log(topic, unit).stable_end for topic in settings.input_topics}


def judge(kafka: MemoryKafka, settings: JoinerSettings) -> tuple[str, Findings | None]:
    """Return the differences as text (empty if there are none), and the findings if any unit has a checkpoint."""
    checkpoint = all_progress(kafka, settings)
    if not checkpoint:
        written = (settings.topics.out, settings.topics.late)
        outputs = [topic for topic in written if _messages(kafka, topic, ours=True)]
        return (f"nothing is claimed and {outputs} hold records" if outputs else ""), None
    topics = settings.topics
    messages = [message for name in settings.input_topics for message in _messages(kafka, name)]
    outputs = [topics.out, topics.late, topics.rejected, topics.unmatched]
    messages += [message for name in outputs for message in _messages(kafka, name, ours=True)]
    evidence = RecordedEvidence(checkpoint, messages, topics)
    findings = verify(settings, evidence)
    return ("" if findings.is_right else render_findings(findings)), findings


def _messages(kafka: MemoryKafka, name: str, *, ours: bool = False) -> list[Message]:
    """Return the committed records of a topic. ``ours``: leave out the records of other programs."""
    return [
        Message(name, unit, entry.offset, entry.time_ms, entry.key, entry.value)
        for unit, log in enumerate(kafka.topics[name].logs)
        for entry in log.archive
        if entry.is_committed and not (ours and entry.transaction is not None and entry.transaction.producer < 0)
    ]
