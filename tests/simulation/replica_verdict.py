"""Judges what replicas have written: each by itself, their start records, and their union.

A unit of a replica may begin several times: it is founded again when it is reset. Where it begins, it says so by a
start record with an empty vector. What it wrote before it last began is not judged, except that it is merged, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from broker.wire.records import is_watermark
from broker.wire.start_records import read_start
from joiner.check.found.evidence import Message, RecordedEvidence
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
from tests.simulation.memory_log import COMMITTED, Entry, Log, Transaction
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


class Claims:
    """Notes where the state log of a unit ends whenever its transactional id is initialised."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self._ends: dict[tuple[int, int], int] = {}
        kafka.on_init = self._note

    def _note(self, transactional_id: str, epoch: int) -> None:
        application, _, unit = transactional_id.rpartition("-")
        log = self._kafka.log(f"{application}.state", int(unit))
        self._ends[self._kafka.identities[transactional_id].producer, epoch] = log.end

    def found(self, by: Transaction, log: Log) -> int:
        """Return up to where a claimant could read the state log. ``by``: its transaction."""
        end = self._ends[by.producer, by.epoch]
        ended = {id(entry.transaction): entry.offset for entry in log.archive if entry.is_control}
        open_ = (
            entry.offset
            for entry in log.archive
            if entry.transaction is not None and entry.offset < end <= ended.get(id(entry.transaction), math.inf)
        )
        return min(open_, default=end)


def wrong_starts(
    kafka: MemoryKafka, settings: JoinerSettings, draw: random.Random, claims: Claims, *, is_exact: bool
) -> str:
    """Return what is wrong with the start records of a replica, or an empty string if nothing is.

    ``is_exact``: no transaction was ended wrongly, so each begins where the one before it ended.
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
            or _not_resolved(kafka, settings, unit, claims)
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
    inputs = [
        _message(name, unit, entry)
        for name in settings.input_topics
        for entry in kafka.log(name, unit).archive
        if entry.is_committed
    ]
    checkpoint = all_progress(kafka, settings)[unit]
    for vector_, places in draw.sample(sorted(firsts.items()), min(len(firsts), _VECTORS_MAX)):
        before = [
            _message(settings.output_topics[kind], unit, entry)
            for kind, of_kind in entries.items()
            for entry in of_kind[: places.get(kind, len(of_kind))]
        ]
        at_vector = msgspec.structs.replace(checkpoint, offsets=dict(vector_))
        findings = verify(settings, RecordedEvidence({unit: at_vector}, [*inputs, *before], settings.topics))
        wanted = {what for kind in places for what in _KINDS[kind]}
        if missing := sum(tally.missing for (what, _), tally in findings.tallies.items() if what in wanted):
            return f"{missing} outputs are missing before the start record {dict(vector_)}"
    return ""


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

    A start record with an empty vector must be in between. Only the loss of start records with a vector is harmless.
    """
    for kind, topic in settings.output_topics.items():
        log = kafka.log(topic, unit)
        wrong = {
            entry.offset
            for decided, records in log.left_open
            for entry in records
            if (decided.state == COMMITTED) != entry.is_committed and _matters(entry)
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


def _not_resolved(kafka: MemoryKafka, settings: JoinerSettings, unit: int, claims: Claims) -> str:
    """Return a claim that resolves transactions and continues, although it cannot prove that none was ended wrongly.

    That is so if it finds the note of an earlier claimant, or if it writes missing output. A note that is behind an
    open transaction is not found, and one that a fenced claimant writes later does not matter either, also if somebody
    else has claimed the unit since: neither of these claimants has written anything else.
    """
    key, notes = dangling_key(unit).encode(), dict[int, int]()
    claimed = list[int]()
    logs = {kind: written(kafka, topic, unit) for kind, topic in settings.output_topics.items()}
    state = kafka.log(settings.state_topic, unit)
    for entry in state.archive:
        if entry.key == checkpoint_key(unit).encode() and entry.is_committed:
            claimed.append(entry.offset)
        if entry.key != key or not entry.is_committed:
            continue
        if entry.value is not None:
            notes[entry.offset] = decode_checkpoint(entry.value).noted_at
            continue
        assert entry.transaction is not None, "a note is removed by a claim or a reset"
        end = claims.found(entry.transaction, state)
        found = [at for at, noted_at in notes.items() if at < end and not any(noted_at <= one < end for one in claimed)]
        mine = [one for log in logs.values() for one in log if one.transaction is entry.transaction]
        vectors = [vector for one in mine if (vector := read_start(one.value)) is not None]
        if (found or len(mine) > len(vectors)) and any(vectors):
            return f"the claim at {entry.offset} continues, after the notes at {found}"
        notes.clear()
    return ""


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
    log = found.log
    for entry in written(kafka, settings.output_topics[kind], unit):
        if (vector := read_start(entry.value)) is not None:
            if len(log) > 1 and vector and (log[-1] == ("start", {}) or not reached(vector, last)):
                # Perhaps it has only resolved transactions, and nothing was missing.
                found.resets.add(len(log))
            last = vector or last
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
