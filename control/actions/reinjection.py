"""Puts the records of dead letters back into the topics they came from, each exactly once.

A record and its `PutBack` note are written in one transaction. All control services of an application use the same
transactional id, so whichever initialises it fences all others and ends their transactions. From then on, the audit
topic tells exactly what was put back:

1. read the dead letters and decide which can be put back
2. initialise the transactional id
3. read the audit topic, and refuse what was put back before
4. begin a transaction, and write the records and their `PutBack` notes
5. commit

After a crash at any point, repeating the request finds out what was written, and writes the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from broker.kafka.topics import TopicError, ensure_topics, topic_facts
from broker.settings import SettingsError
from control.actions.audit import LaterFormat, PutBack, audit_topic, audit_topic_spec, decode_put_back, encode
from control.actions.candidates import Candidate, candidate_of
from control.facts.dead_letter_reading import LetterGone, read_message
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import (
    EARLIEST,
    LATEST,
    describe,
    make_admin,
    make_producer,
    make_reader,
    names_fencing,
    read_to_end,
    timed_out,
    within,
)

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

PLACES_MAX: Final = 200
"""How many dead letters can be put back at once."""

DEADLINE_S: Final = 30.0

_TRANSACTION_MS: Final = 15_000
"""Kafka aborts a transaction that is open longer. This is short because the joiner cannot read past the open
transaction of a process that has died."""

_GRACE_S: Final = 2.0
_INIT_S: Final = 0.05
_INIT_MAX_S: Final = 1.0
_STEP_S: Final = 1.0
"""The minimum timeout of a call whose outcome matters."""

_LOOK_S: Final = 0.02


_one_at_a_time: Final = dict[str, threading.Lock]()
"""By transactional id. A second call in this process would fence the first."""


class PutBackError(Exception):
    """Nothing was put back or, if ``is_open``, it is not known whether anything was. The text says what to do."""

    def __init__(self, text: str, *, is_open: bool = False) -> None:
        super().__init__(text)
        self.is_open = is_open


class Outcome(msgspec.Struct, frozen=True):
    """What became of a dead letter.

    ``is_done``: whether its record was put back or, in a dry run, would be. ``reason``: why not, and what to do.
    ``to_topic``, ``to_partition``: where the record goes. They are empty and None, respectively, if that is unknown.
    """

    partition: int
    offset: int
    is_done: bool
    reason: str = ""
    to_topic: str = ""
    to_partition: int | None = None


class Order(NamedTuple):
    """The dead letters to put back, by partition and offset. `put_back` describes the other fields."""

    places: Sequence[tuple[int, int]]
    by: str
    value: bytes | None
    again: bool
    dry_run: bool


def put_back(
    settings: JoinerSettings,
    places: Sequence[tuple[int, int]],
    by: str,
    value: bytes | None = None,
    *,
    again: bool = False,
    dry_run: bool = False,
    deadline_s: float = DEADLINE_S,
    clock: Clock | None = None,
) -> list[Outcome]:
    """Put the records of dead letters back. Return an outcome for each, in order. Blocks; not for event loops.

    ``places``: the partition and offset of each dead letter, at most `PLACES_MAX`. ``by``: the name of the user who
    asked for it. ``value``: a corrected value, for exactly one dead letter. ``again``: include records put back before;
    if such a call fails with ``is_open``, repeating it may put a record back twice. ``dry_run``: write nothing, only
    report what would be done.

    Either all records are put back, except those whose outcome gives a reason, or none are. Raises `PutBackError`,
    at the latest a moment after ``deadline_s``.
    """
    if not 1 <= len(places) <= PLACES_MAX:
        raise PutBackError(f"{len(places)} dead letters cannot be put back at once: name 1 to {PLACES_MAX}")
    if value is not None and len(places) > 1:
        raise PutBackError("a corrected value is for one dead letter only: put back one at a time")
    clock = clock or SystemClock()
    until_s = clock.monotonic_s() + deadline_s
    order = Order(places, by, value, again, dry_run)
    alone = threading.Lock() if dry_run else _one_at_a_time.setdefault(transactional_id(settings), threading.Lock())
    if not alone.acquire(timeout=deadline_s):
        raise PutBackError("this service is putting back other records: try again")
    try:
        call = _Call(settings, order, clock, until_s)
        try:
            # A call to the Kafka client may hang despite its timeout.
            within(max(0.0, until_s - clock.monotonic_s()) + _GRACE_S, call.run)
        except KafkaException as error:
            raise call.failure(error) from error
        except (SettingsError, TopicError) as error:
            raise PutBackError(f"nothing was put back: {error}") from error
        return call.outcomes
    finally:
        alone.release()


class _Call:
    """One call to `put_back`. ``outcomes``: what became of each dead letter, once `run` has returned."""

    def __init__(self, settings: JoinerSettings, order: Order, clock: Clock, until_s: float) -> None:
        self._settings, self._order, self._clock, self._until_s = settings, order, clock, until_s
        self._lock = threading.Lock()
        self._is_committing = self._is_over = False
        self.outcomes: list[Outcome] = []

    def run(self) -> None:
        """Run all steps. Raises `PutBackError` and KafkaException."""
        settings, order = self._settings, self._order
        admin = make_admin(settings.kafka)
        found = self._read_letters()
        found = self._with_topics(admin, found)
        if order.dry_run:
            self.outcomes = self._refuse_repeated(found, self._read_audit(admin))
            return
        if not any(isinstance(one, Candidate) for one in found):
            self.outcomes = self._refuse_repeated(found, {})
            return
        ensure_topics(admin, [audit_topic_spec(settings)])
        producer = self._initialise()
        outcomes = self._refuse_repeated(found, self._read_audit(admin))
        chosen = [
            (one, at) for one, at in zip(found, outcomes, strict=True) if at.is_done and isinstance(one, Candidate)
        ]
        if chosen:
            self._write(producer, chosen)
            self._commit(producer)
        self.outcomes = outcomes

    def failure(self, error: KafkaException) -> PutBackError:
        """Return the error to raise for an error from Kafka. A `run` still in progress no longer commits after this."""
        with self._lock:
            self._is_over = True
        fault: Any = error.args[0]
        is_fenced = names_fencing(error) or fault.code() == KafkaError._FATAL  # noqa: SLF001 - the public name
        cause = "another control service is putting records back" if is_fenced else describe(error)
        if not self._is_committing or fault.txn_requires_abort():
            return PutBackError(f"nothing was put back: {cause}; try again")
        return PutBackError(
            f"it is not known whether the records were put back: {cause}; try again: those that were are then refused",
            is_open=True,
        )

    def _left_s(self) -> float:
        left_s = self._until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise timed_out("Kafka has not answered in time")
        return left_s

    def _now_ms(self) -> int:
        return round(1000 * self._clock.wall_s())

    def _read_letters(self) -> list[Candidate | str]:
        """Return, for each dead letter, the record to put back, or why it cannot be put back (step 1)."""
        settings, found = self._settings, list[Candidate | str]()
        with closing(make_reader(settings.kafka, settings.application.name)) as consumer:
            for partition, offset in self._order.places:
                place = settings.topics.rejected, partition, offset
                try:
                    message = read_message(consumer, self._clock, place, self._until_s)
                except LetterGone as gone:
                    found.append(f"there is no such dead letter: {gone}")
                else:
                    found.append(candidate_of(settings, message, self._order.value, self._now_ms()))
        return found

    def _with_topics(self, admin: AdminClient, found: Sequence[Candidate | str]) -> list[Candidate | str]:
        """Refuse the records whose topic is gone, because a producer might recreate it."""
        topics = sorted({one.topic for one in found if isinstance(one, Candidate)})
        facts = topic_facts(admin, topics, self._left_s()) if topics else {}
        return [
            f"{one.topic} [{one.partition}] no longer exists"
            if isinstance(one, Candidate) and (one.topic not in facts or one.partition >= facts[one.topic].partitions)
            else one
            for one in found
        ]

    def _initialise(self) -> Producer:
        """Initialise the transactional id (step 2)."""
        settings = self._settings
        producer = make_producer(
            settings.kafka,
            transactional_id=transactional_id(settings),
            transaction_timeout_ms=_TRANSACTION_MS,
            linger_ms=5,
        )
        wait_s = _INIT_S
        while True:
            try:
                producer.init_transactions(min(wait_s, self._left_s()))
            except KafkaException as error:
                # Kafka refuses the request while it is ending another process's transaction.
                fault: Any = error.args[0]
                if not fault.retriable():
                    raise
                wait_s = min(2 * wait_s, _INIT_MAX_S)
            else:
                return producer

    def _read_audit(self, admin: AdminClient) -> dict[str, PutBack]:
        """Return the last `PutBack` of each record, by the id of its dead letter (step 3)."""
        settings, topic = self._settings, audit_topic(self._settings)
        if self._order.dry_run and topic not in topic_facts(admin, [topic], self._left_s()):
            return {}
        first = self._offset(admin, EARLIEST)
        end = self._offset(admin, LATEST, IsolationLevel.READ_UNCOMMITTED)
        # Everything our predecessors committed must be visible. Their transactions have ended by now.
        while (stable := self._offset(admin, LATEST)) < end and not self._order.dry_run:
            if self._left_s() < _STEP_S:
                raise PutBackError(f"nothing was put back: {topic} has an open transaction; try again")
            self._clock.sleep(_LOOK_S)
        found: dict[str, PutBack] = {}
        with closing(make_reader(settings.kafka, settings.application.name)) as consumer:
            for message in read_to_end(consumer, self._clock, topic, 0, first, stable):
                self._left_s()
                try:
                    record = decode_put_back(message.value())
                except LaterFormat as later:
                    raise PutBackError(f"nothing was put back: {topic}: {later}") from later
                if isinstance(record, PutBack):
                    found[record.id] = record
        return found

    def _offset(
        self, admin: AdminClient, which: OffsetSpec, level: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> int:
        asked = {TopicPartition(audit_topic(self._settings), 0): which}
        (found,) = admin.list_offsets(asked, isolation_level=level, request_timeout=self._left_s()).values()
        return int(found.result().offset)

    def _refuse_repeated(self, found: Sequence[Candidate | str], before: Mapping[str, PutBack]) -> list[Outcome]:
        """Return each dead letter's outcome, provided that nothing fails. ``before``: see `_read_audit`."""
        outcomes, ids = list[Outcome](), set[str]()
        for (partition, offset), one in zip(self._order.places, found, strict=True):
            if isinstance(one, str):
                outcomes.append(Outcome(partition, offset, is_done=False, reason=one))
                continue
            reason = ""
            if one.id in ids:
                reason = "another of these dead letters has the same record"
            elif one.id in before and not self._order.again:
                reason = f"its record was put back already, {_by_whom(before[one.id])}; use again=true to repeat it"
            ids.add(one.id)
            outcomes.append(Outcome(partition, offset, not reason, reason, one.topic, one.partition))
        return outcomes

    def _write(self, producer: Producer, chosen: Sequence[tuple[Candidate, Outcome]]) -> None:
        """Write the records and their `PutBack` notes (step 4)."""
        topic, at_ms, order = audit_topic(self._settings), self._now_ms(), self._order
        self._left_s()
        producer.begin_transaction()
        try:
            for one, letter in chosen:
                record = PutBack(
                    id=one.id,
                    partition=letter.partition,
                    offset=letter.offset,
                    to_topic=one.topic,
                    to_partition=one.partition,
                    by=order.by,
                    at=at_ms,
                    is_corrected=order.value is not None,
                )
                self._produce(producer, one.topic, one.partition, one.key, one.value)
                self._produce(producer, topic, 0, None, encode(record))
            self._begin_commit()
        except KafkaException:
            _abort(producer)
            raise

    def _produce(self, producer: Producer, topic: str, partition: int, key: bytes | None, value: bytes) -> None:
        while True:
            try:
                producer.produce(topic, value, key, partition)
            except BufferError:
                producer.poll(min(_LOOK_S, self._left_s()))
            else:
                return

    def _begin_commit(self) -> None:
        """Note that from now on, a failure no longer means that nothing was put back."""
        with self._lock:
            if self._is_over:
                raise timed_out("Kafka has not answered in time")
            self._is_committing = True

    def _commit(self, producer: Producer) -> None:
        """Commit (step 5). It is safe to repeat the request after a retriable error, such as a lost response."""
        while True:
            try:
                producer.commit_transaction(max(_STEP_S, self._until_s - self._clock.monotonic_s()))
            except KafkaException as error:
                fault: Any = error.args[0]
                if fault.txn_requires_abort():
                    _abort(producer)
                    raise
                if not fault.retriable() or self._clock.monotonic_s() > self._until_s:
                    raise
            else:
                return


def transactional_id(settings: JoinerSettings) -> str:
    """Return the transactional id that all control services of an application use to put records back."""
    return f"{settings.application.name}-control-put-back"


def _abort(producer: Producer) -> None:
    # If this fails, the next initialisation ends the transaction, or Kafka does.
    with suppress(KafkaException):
        producer.abort_transaction(_STEP_S)


def _by_whom(record: PutBack) -> str:
    try:
        at = f"{datetime.fromtimestamp(record.at / 1e3, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        at = "an unknown time"
    return f"at {at} by {record.by}"
