"""Reads the topics of the replicas, and yields the messages to deliver."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from broker.kafka.errors import is_fatal
from broker.wire.start_records import read_start
from joiner.library.merging.partition import MergedPartition, MergeError
from joiner.library.merging.protocol import ReplicaUnion, Verdict

_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - the public names of the constants

_OUT_OF_RANGE: Final = {
    KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - as above
    KafkaError.OFFSET_OUT_OF_RANGE,
}

_UNKNOWN: Final = {
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - as above
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - as above
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}

SHORT_QUEUE: Final[dict[str, int]] = {"queued.min.messages": 1_000, "max.partition.fetch.bytes": 32 * 1024}
"""Settings of a client that fetches little in advance. It hands over messages in the order in which they arrived, so
that the newest results of all replicas would otherwise wait behind what one that catches up has written."""

_ENDS_S: Final = 10.0
"""How long Kafka may take to tell the ends of the input."""

_log = logging.getLogger(__name__)

Place = tuple[str, int]
"""A topic and a partition."""


class Source(NamedTuple):
    """What a place contains: the output of a replica, and the name and partition of the output that it is part of."""

    replica: int
    output: Place


class ReplicaInputs:
    """The replicas' topics, read by one consumer. It must be read-committed, reset no offsets, and tell the ends.

    ``decided``: per place, the offset after the last message that was decided about, or `OFFSET_BEGINNING`. It is valid
    between two messages of `take`. ``starts``: per place, the offset of the last start record, if there was one.
    """

    def __init__(
        self,
        consumer: Consumer,
        sources: Mapping[Place, Source],
        partitions: Mapping[Place, MergedPartition],
        positions: Mapping[Place, int],
        *,
        starts: Mapping[Place, int] | None = None,
    ) -> None:
        """``sources``: the places to read. ``partitions``: the unions, by output. ``starts``: as in the last state."""
        self._consumer, self._sources, self._partitions = consumer, sources, partitions
        self.decided = {place: positions.get(place, OFFSET_BEGINNING) for place in sources}
        self.starts = dict(starts or {})
        self._ends: dict[Place, int] = {}
        self._waiting: dict[Place, deque[Message]] = {}
        """Messages that were read already, of places at which memory is full. These are paused."""
        self._input_ends = _InputEnds(consumer, {number for _, number in sources})
        self._may_retry = False
        """Whether there has been a start record, so that messages may not have to wait any more."""
        with suppress(KafkaException):
            # Otherwise, librdkafka looks up the leaders of topics that it has not read before only once a second.
            _ask_ends(consumer, {topic for topic, _ in sources}, {number for _, number in sources})
        self._assign()

    def take(self, count: int, timeout_s: float) -> Iterator[tuple[Source, Message]]:
        """Read up to ``count`` messages, waiting at most ``timeout_s`` for them, and yield those to deliver.

        Raises KafkaException, and `MergeError` if messages were deleted before they were read.
        """
        messages = self._consumer.consume(count, timeout_s)
        self._input_ends.forget()
        for message in messages:
            error, topic, partition = message.error(), message.topic(), message.partition()
            place = topic or "", -1 if partition is None else partition
            if error is not None:
                if self._continues_after(error, place, message):
                    continue
                return
            if place in self._waiting:
                self._waiting[place].append(message)
                continue
            yield from self._decide(place, message)
            if self._may_retry:
                yield from self._retry(self._sources[place].output)

    def positions(self) -> dict[Place, int]:
        """Return the offsets from which to continue. Like ``decided``, but also after what is no message.

        Otherwise, once retention has deleted everything, a position before the marker of a transaction would not be in
        the log any more.
        """
        return {place: max(at, self._ends.get(place, at)) for place, at in self.decided.items()}

    def waiting(self) -> int:
        """Return the number of places at which memory is full, so that another replica is waited for."""
        return len(self._waiting)

    def _decide(self, place: Place, message: Message) -> Iterator[tuple[Source, Message]]:
        source, value = self._sources[place], message.value()
        partition = self._partitions[source.output]
        start = read_start(value)
        if start is not None:
            self._start(source, start)
            self.starts[place] = message.offset() or 0
        elif (verdict := partition.offer(source.replica, value, message.timestamp()[1])) is Verdict.WAIT:
            self._waiting[place] = deque([message])
            self._consumer.pause([TopicPartition(*place)])
            return
        # Messages that were consumed have an offset.
        self.decided[place] = (message.offset() or 0) + 1
        if start is None and verdict is Verdict.DELIVER:
            yield source, message

    def _start(self, source: Source, start: Mapping[str, int]) -> None:
        self._may_retry = bool(self._waiting)
        union = self._partitions[source.output].union
        ends: Mapping[str, int] | None = None
        if union.goes_back(source.replica, start):
            ends = self._input_ends.of(union, source.output)
            if union.complete != [source.replica]:
                _log.info(
                    "%s partition %d: replica %d does not continue from where it was; until it has passed everything "
                    "that was forgotten, its results come from the others",
                    *source.output,
                    source.replica,
                )
        if union.on_start(source.replica, start, ends):
            _log.warning(
                "%s partition %d: replica %d does not continue from where it was, and no other one is complete; if it "
                "was reset, results may be delivered again and, if it does not begin at application.start, be missing",
                *source.output,
                source.replica,
            )

    def _retry(self, output: Place) -> Iterator[tuple[Source, Message]]:
        """Decide again about the messages that wait at the places of an output, while there are start records."""
        while self._may_retry:
            self._may_retry = False
            for place in [place for place in self._waiting if self._sources[place].output == output]:
                messages = self._waiting.pop(place)
                while messages and place not in self._waiting:
                    yield from self._decide(place, messages.popleft())
                if place in self._waiting:
                    self._waiting[place].extend(messages)
                else:
                    self._consumer.resume([TopicPartition(*place)])

    def _continues_after(self, error: KafkaError, place: Place, event: Message) -> bool:
        """Handle an error event. Return False if the messages after it will be read again.

        Raises KafkaException unless the client recovers by itself, and skips no messages.
        """
        if error.code() == _END:
            if place not in self._waiting:
                self._ends[place] = event.offset() or 0
            return True
        if place in self._sources and error.code() in _OUT_OF_RANGE:
            self._lose(place)
            return False
        if place in self._sources:
            raise _at(place, error)
        if is_fatal(error):
            raise KafkaException(error)
        return True

    def _lose(self, place: Place) -> None:
        """Continue at the beginning of a log that does not have the position any more."""
        source = self._sources[place]
        union = self._partitions[source.output].union
        ends = self._input_ends.of(union, source.output)
        shown = f"{place[0]} partition {place[1]}: messages from offset {self.decided[place]} on were deleted"
        if not union.lose(source.replica, ends):
            message = (
                f"{shown} before they were merged, and no other replica is complete, so results are missing: retain "
                "them for longer (topics.retention), and begin again (see replicas.md)"
            )
            raise MergeError(message)
        _log.warning("%s; the results come from the other replicas", shown)
        self.decided[place] = OFFSET_BEGINNING
        self.starts.pop(place, None)
        self._ends.pop(place, None)
        if self._waiting:
            self._consumer.resume([TopicPartition(*paused) for paused in self._waiting])
            self._waiting.clear()
        self._assign()

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(*place, at) for place, at in self.positions().items()])


class _InputEnds:
    """The ends of the input after a read, which are asked for once, and only if they are needed.

    Whatever the replicas had written of what was read, they had consumed before. So the ends are not too low for any of
    it. The consumer's request is answered after its pending fetch request. A replica that is added says in each
    partition of each output that it begins, and one request for each of these would pause all others for a second.
    """

    def __init__(self, consumer: Consumer, partitions: Iterable[int]) -> None:
        self._consumer, self._partitions = consumer, sorted(partitions)
        self._topics: set[str] = set()
        self._found: dict[Place, int] = {}

    def forget(self) -> None:
        """Forget the ends, because more was read."""
        self._topics.clear()
        self._found.clear()

    def of(self, union: ReplicaUnion, output: Place) -> dict[str, int]:
        """See `input_ends`."""
        topics = union.topics()
        if missing := topics - self._topics:
            self._found |= _ask_ends(self._consumer, missing, self._partitions)
            self._topics |= missing
        return {topic: self._found[topic, output[1]] for topic in topics if (topic, output[1]) in self._found}


def input_ends(consumer: Consumer, union: ReplicaUnion, output: Place) -> dict[str, int]:
    """Return the ends of the input from which the replicas compute an output. Raises KafkaException.

    ``consumer`` must be read-committed, as the replicas are. A topic that no longer exists is left out.
    """
    return {topic: end for (topic, _), end in _ask_ends(consumer, union.topics(), [output[1]]).items()}


def _ask_ends(consumer: Consumer, topics: Iterable[str], partitions: Iterable[int]) -> dict[Place, int]:
    """Return the ends of partitions of several topics. Leaves out what does not exist. Raises KafkaException."""
    wanted = [TopicPartition(topic, number, OFFSET_END) for topic in sorted(topics) for number in partitions]
    try:
        places = consumer.offsets_for_times(wanted, _ENDS_S) if wanted else []
    except KafkaException as error:
        # The whole request fails if none of them exists.
        if error.args[0].code() in _UNKNOWN:
            return {}
        raise _at((wanted[0].topic, wanted[0].partition), error.args[0]) from error
    found = {}
    for place in places:
        if place.error is None:
            found[place.topic, place.partition] = place.offset
        elif place.error.code() not in _UNKNOWN:
            raise _at((place.topic, place.partition), place.error)
    return found


def _at(place: Place, error: KafkaError) -> KafkaException:
    """Return an error that also says where it has occurred: Kafka does not, for example if it denies access."""
    return KafkaException(KafkaError(error.code(), f"{place[0]} partition {place[1]}: {error.str()}"))
