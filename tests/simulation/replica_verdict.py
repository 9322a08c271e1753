"""Judges what replicas have written: each by itself, their start records, and their union.

A unit of a replica may begin several times: it is founded again when it is reset. Where it begins, it says so by a
start record with an empty vector. What it wrote before it last began is not judged, except that it is merged, too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from broker.wire.records import is_watermark
from broker.wire.start_records import read_start
from joiner.check.found.evidence import Message, RecordedEvidence
from joiner.check.found.findings import Findings
from joiner.check.verify import comparison
from joiner.check.verify.outputs import verify
from joiner.check.verify.rows import ROWS
from joiner.library.merging.partition import MergedPartition
from joiner.library.merging.protocol import ReplicaUnion
from joiner.library.merging.vectors import reached
from joiner.runtime.kafka.pending_markers import holds_results, identities_in
from joiner.runtime.model import RESET_RUN, checkpoint_key, dangling_key, decode_checkpoint
from joiner.runtime.settings import JoinerSettings
from tests.property.replica_histories import Reader, Writer
from tests.simulation.memory_kafka import MemoryKafka
from tests.simulation.memory_log import Entry, Log, Transaction
from tests.simulation.verdict import all_progress

_VECTORS_MAX: Final = 5
"""How many start records of a unit are compared with the checker's result, which takes long."""

_KINDS: Final = {
    "out": {comparison.RESULTS, ROWS},
    "late": {comparison.LATE},
    "unmatched": {comparison.UNMATCHED},
    "rejected": {comparison.REJECTED, comparison.FAILED, comparison.FAILED_ROWS},
}
"""The kinds of output in each output topic, in the checker's words."""


def written(kafka: MemoryKafka, topic: str, unit: int) -> list[Entry]:
    """Return what an application has committed to a partition of an output topic."""
    return [
        entry
        for entry in kafka.log(topic, unit).archive
        if entry.is_committed and entry.transaction is not None and entry.transaction.producer >= 0
    ]


def since_begun(entries: Sequence[Entry], begins_at: int) -> list[Entry]:
    """Return what a unit has written since it was last founded. ``begins_at``: see `Checkpoint.result_ends`."""
    return [entry for entry in entries if entry.offset >= begins_at]


def wrong_starts(
    kafka: MemoryKafka, settings: JoinerSettings, draw: random.Random, counts: Counter[str], *, is_exact: bool
) -> str:
    """Return what is wrong with the start records of a replica, or an empty string if nothing is.

    ``is_exact``: no transaction was ended wrongly, so each begins where the one before it ended. ``counts``: how many
    claims that resolve transactions continue, to add to.
    """
    for unit in range(settings.topics.partitions):
        entries = {kind: written(kafka, topic, unit) for kind, topic in settings.output_topics.items()}
        for kind, of_kind in entries.items():
            if wrong := _not_first(of_kind):
                return f"{kind} [{unit}]: {wrong}"
        ends = all_progress(kafka, settings)[unit].result_ends
        judged = {kind: since_begun(one, ends.get(settings.output_topics[kind], 0)) for kind, one in entries.items()}
        wrong = (
            _not_true(kafka, settings, unit, judged, draw)
            or _not_told(kafka, settings, unit)
            or _not_resolved(kafka, settings, unit, judged, counts)
        )
        if wrong or (is_exact and (wrong := _not_exact(kafka, settings, unit))):
            return f"unit {unit}: {wrong}"
    return ""


def _message(topic: str, unit: int, entry: Entry) -> Message:
    return Message(topic, unit, entry.offset, entry.time_ms, entry.key, entry.value)


def _not_first(entries: Sequence[Entry]) -> str:
    """Return the offset of a transaction's first message in a topic, if that is not a start record."""
    seen = set[int]()
    for entry in entries:
        if id(entry.transaction) not in seen and read_start(entry.value) is None:
            return f"the transaction at {entry.offset} has no start record"
        seen.add(id(entry.transaction))
    return ""


def _not_true(
    kafka: MemoryKafka, settings: JoinerSettings, unit: int, entries: dict[str, list[Entry]], draw: random.Random
) -> str:
    """Return a start record before which output is missing that is due at its vector. ``entries``: by topic."""
    firsts: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
    for kind, of_kind in entries.items():
        for at, entry in enumerate(of_kind):
            if vector := read_start(entry.value):
                # The output before its first occurrence is the smallest.
                firsts.setdefault(tuple(sorted(vector.items())), {}).setdefault(kind, at)
    for vector_, places in draw.sample(sorted(firsts.items()), min(len(firsts), _VECTORS_MAX)):
        before = {kind: of_kind[: places.get(kind, len(of_kind))] for kind, of_kind in entries.items()}
        findings = _compared(kafka, settings, unit, dict(vector_), before)
        wanted = {what for kind in places for what in _KINDS[kind]}
        if missing := sum(tally.missing for (what, _), tally in findings.tallies.items() if what in wanted):
            return f"{missing} outputs are missing before the start record {dict(vector_)}"
    return ""


def _compared(
    kafka: MemoryKafka, settings: JoinerSettings, unit: int, vector: dict[str, int], entries: dict[str, list[Entry]]
) -> Findings:
    """Compare output with what is due at a vector. ``entries``: by kind."""
    inputs = [
        _message(name, unit, entry)
        for name in settings.input_topics
        for entry in kafka.log(name, unit).archive
        if entry.is_committed
    ]
    outputs = [
        _message(settings.output_topics[kind], unit, entry) for kind, of_kind in entries.items() for entry in of_kind
    ]
    at_vector = msgspec.structs.replace(all_progress(kafka, settings)[unit], offsets=vector)
    return verify(settings, RecordedEvidence({unit: at_vector}, [*inputs, *outputs], settings.topics))


def _not_exact(kafka: MemoryKafka, settings: JoinerSettings, unit: int) -> str:
    """Return a transaction with other start records than where it began, or without one in a topic that needs it."""
    found = {kind: _vectors(written(kafka, topic, unit)) for kind, topic in settings.output_topics.items()}
    last: dict[str, int] | None = None
    run, state = RESET_RUN, kafka.log(settings.state_topic, unit).archive
    # Another program's open transaction is resolved, too. A claim may not be able to prove that it is not the unit's.
    resolving = {id(entry.transaction) for entry in state if entry.key == dangling_key(unit).encode()}
    for entry in state:
        if entry.key != checkpoint_key(unit).encode() or not entry.is_committed or entry.value is None:
            continue
        checkpoint, transaction = decode_checkpoint(entry.value), id(entry.transaction)
        if checkpoint.run != RESET_RUN:
            begins = run == RESET_RUN
            wanted = [*([{}] if begins else []), last or checkpoint.offsets]
            for kind, vectors in found.items():
                is_needed = begins or kind == "out"
                given = vectors.get(transaction, wanted if not is_needed else [])
                if given != wanted and not (transaction in resolving and given == [{}]):
                    return f"the transaction of the checkpoint at {entry.offset} has not {wanted} in {kind}"
        last, run = checkpoint.offsets, checkpoint.run
    return ""


def _matters(entry: Entry) -> bool:
    """Return whether a start record must follow that says that this was ended wrongly."""
    vector = read_start(entry.value)
    return vector is None or (not vector and not entry.is_committed)


def _not_told(kafka: MemoryKafka, settings: JoinerSettings, unit: int) -> str:
    """Return a start record that claims to continue, although Kafka has ended a transaction wrongly before it.

    That is so if its messages are visible although its checkpoint is not, or the other way round. A start record with
    an empty vector must be in between. Only the loss of start records with a vector is harmless.
    """
    state = kafka.log(settings.state_topic, unit)
    key, counted = checkpoint_key(unit).encode(), set[Transaction]()
    for transaction, entry in _by_transaction(state):
        if entry.key == key and entry.is_committed:
            counted.add(transaction)
    for kind, topic in settings.output_topics.items():
        log = kafka.log(topic, unit)
        wrong = {
            entry.offset
            for transaction, entry in _by_transaction(log)
            if (transaction in counted) != entry.is_committed and _matters(entry)
        }
        lost_at = -1
        for entry in log.archive:
            vector = read_start(entry.value) if entry.is_committed else None
            if vector == {}:
                lost_at = -1
            elif vector is not None and lost_at >= 0:
                return f"{kind} at {entry.offset} continues, but {lost_at} was ended wrongly"
            if entry.offset in wrong:
                lost_at = entry.offset
    return ""


def _by_transaction(log: Log) -> list[tuple[Transaction, Entry]]:
    """Return the messages of all units with the transactions that wrote them, also those that Kafka has left open."""
    left = {entry.offset: transaction for transaction, records in log.left_open for entry in records}
    return [
        (left.get(entry.offset, entry.transaction), entry)
        for entry in log.archive
        if entry.transaction is not None and entry.transaction.producer >= 0 and not entry.is_control
    ]


def _not_resolved(
    kafka: MemoryKafka, settings: JoinerSettings, unit: int, entries: dict[str, list[Entry]], counts: Counter[str]
) -> str:
    """Return a claim that resolves transactions and continues, although not exactly what is due precedes it.

    What precedes it must be what is due at its vector, in each topic: other output would come again or be out of order.
    ``entries``: by kind.
    """
    key = dangling_key(unit).encode()
    for removal in kafka.log(settings.state_topic, unit).archive:
        if removal.key != key or removal.value is not None or not removal.is_committed:
            continue
        places = {kind: _first_of(removal.transaction, of_kind) for kind, of_kind in entries.items()}
        mine = [entry for of_kind in entries.values() for entry in of_kind if entry.transaction is removal.transaction]
        vector = next(filter(None, (read_start(entry.value) for entry in mine)), None)
        if vector is None:
            continue
        before = {kind: of_kind[: places[kind]] for kind, of_kind in entries.items()}
        findings = _compared(kafka, settings, unit, vector, before)
        counts["resolved and continued"] += 1
        counts["resolved, continued and wrote"] += any(read_start(entry.value) is None for entry in mine)
        said = {what for kind, at in places.items() if at < len(entries[kind]) for what in _KINDS[kind]}
        if any(not tally.is_right for (what, _), tally in findings.tallies.items() if what in said):
            return f"the claim at {removal.offset} continues from {vector}, but is not preceded by what is due there"
    return ""


def _first_of(transaction: Transaction | None, entries: Sequence[Entry]) -> int:
    """Return the index of a transaction's first message, or the number of all messages if it has none."""
    return next((at for at, entry in enumerate(entries) if entry.transaction is transaction), len(entries))


def _vectors(entries: Sequence[Entry]) -> dict[int, list[dict[str, int]]]:
    """Return the vectors in the start records of each transaction."""
    found: dict[int, list[dict[str, int]]] = {}
    for entry in entries:
        if (vector := read_start(entry.value)) is not None:
            found.setdefault(id(entry.transaction), []).append(vector)
    return found


def wrongly_merged(kafka: MemoryKafka, replicas: Sequence[JoinerSettings], draw: random.Random) -> str:
    """Merge the outputs of all replicas as a reader does, in any order. Return what is wrong, or an empty string."""
    for unit in range(replicas[0].topics.partitions):
        ends = {name: kafka.log(name, unit).stable_end for name in replicas[0].input_topics}
        for kind in replicas[0].output_topics:
            writers = [_writer(kafka, settings, kind, unit) for settings in replicas]
            if wrong := _wrong_union(writers, ends, draw):
                return f"merging {kind} [{unit}]: {wrong}"
    return ""


def _writer(kafka: MemoryKafka, settings: JoinerSettings, kind: str, unit: int) -> Writer:
    """Return a replica with its start records and ids, as `Reader` reads them."""
    applications = frozenset({settings.application.shared_name})
    partition = MergedPartition(ReplicaUnion(1, 1), applications, settings.events.time_unit)
    found, last = Writer(None), dict[str, int]()
    log, said = found.log, None
    for entry in written(kafka, settings.output_topics[kind], unit):
        if (vector := read_start(entry.value)) is not None:
            # A transaction that resolves others has only a start record with an empty vector.
            if len(log) > 1 and vector and (said is entry.transaction or not reached(vector, last)):
                found.resets.add(len(log))
            said, last = (said, vector) if vector else (entry.transaction, last)
            log.append(("start", vector))
        elif holds_results(entry.value):
            log += [("id", identity) for identity in identities_in(entry.value)]
        elif not is_watermark(entry.value):
            identity = partition.identity(entry.value)
            assert identity is not None, f"no reader could recognise {entry.value!r}"
            log.append(("id", identity))
    return found


def _wrong_union(replicas: list[Writer], ends: dict[str, int], draw: random.Random) -> str:
    limit, count, logs = draw.choice((1, 4, 16, 1_000)), len(replicas), [one.log for one in replicas]
    writers: Any = SimpleNamespace(writers=replicas, ends=ends)
    reader = Reader(writers, lambda: ReplicaUnion(count, limit), keeps_ids=draw.random() < 0.5)
    for _ in range(sum(map(len, logs)) // 2):
        reader.read(draw.randrange(count), draw.randint(0, 6))
        if draw.random() < 0.1:
            reader.save()
        if draw.random() < 0.03:
            reader.restart()
    if not reader.read_everything():
        return "the reader waits forever"
    # Replica 0 has written everything, and is complete until it goes back.
    lost = {what for kind, what in logs[0] if kind == "id"} - {identity for _, identity in reader.delivered}
    if lost and not reader.skips:
        return f"lost {sorted(map(str, lost))[:3]}"
    twice = reader.repeated()
    return f"delivered too often: {sorted(map(str, twice))[:3]}" if twice else ""
