"""Reads the results of replicas as if there were one application: whichever replica is first delivers a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, Self

import msgspec
from confluent_kafka import Consumer, Message
from confluent_kafka.admin import AdminClient

from broker.kafka.replicas import replica_name
from broker.kafka.topics import topic_facts
from joiner.library.merging.inputs import SHORT_QUEUE, Place, ReplicaInputs, Source, input_ends
from joiner.library.merging.partition import MergedPartition, MergeError
from joiner.library.merging.protocol import REMEMBERED_MAX, ReplicaUnion

_FORCED: Final[dict[str, str | bool]] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}

FORMAT_VERSION: Final = 1
"""The version of the states."""

_states: Final = msgspec.msgpack.Decoder(dict[str, Any])


class MergedReader:
    """Reads one kind of output of an application with replicas, each result once, from whichever replica is first.

    ::

        with MergedReader(config, "machine.out", "spindle", 2, partitions=range(5)) as reader:
            while True:
                for message in reader.read():
                    ...                  # a result or a watermark, exactly as the replica wrote it
                save(reader.state())     # together with what was made of the results

    **What it remembers.** A result is recognised by its id. An id is remembered until the start records of all replicas
    that may still write it say that they have; `protocol` states the rules and why they are right. At most
    ``remembered_max`` ids are remembered per partition, each of which takes a few hundred bytes. When memory is full,
    replicas that are silent or behind are ignored. They are accepted again once they have passed everything that was
    forgotten. One replica all of whose results were delivered is always kept. If that is the one that is silent, the
    others wait when memory is full. So a replica that dies does not delay the results of the others unless these are
    incomplete, which they are for a moment after the reader begins and after they were ignored.

    **Restarts.** A reader that continues from a `state` returns what was returned after that once more, and nothing
    else. If the state is stored in the same transaction as the effects of the results, every result takes effect once.
    Without a state, it begins at the beginning of the topics. After an exception, continue from the last state. If the
    topic of a replica was deleted and recreated since then, the results come from the others at first.

    **Partitions.** A process reads the same partitions of all replicas, because it must remember what all of them
    wrote. They are given by hand. To share the partitions among processes, subscribe to the topic of replica 0 in a
    consumer group, read nothing from that consumer, and create a reader for the partitions that the group assigns. A
    group that subscribes to the topics of all replicas would not do, because it may assign the same partition of
    different topics to different processes.

    A reader also reads late and unmatched records and dead letters, by their topics. Dead letters of other programs,
    which are in the topic of replica 0, are returned as they are. Results in Arrow cannot be merged.

    **Permissions.** When a replica was reset, the reader asks for the ends of the application's input topics. It does
    not read them.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        application: str,
        replicas: int,
        *,
        partitions: Iterable[int],
        remembered_max: int = REMEMBERED_MAX,
        time_unit: str = "ms",
        state: bytes | None = None,
    ) -> None:
        """Create a consumer with ``config``, the settings of librdkafka, and assign the partitions to it.

        It fetches little in advance (`joiner.library.merging.inputs.SHORT_QUEUE`), unless ``config`` says otherwise.

        ``topic``, ``application``: the names of replica 0. ``time_unit``: `events.time_unit`. ``state``: what `state`
        returned. Raises ValueError if it is of another topic, or if only a replica that no longer exists is complete.
        Raises KafkaException, and `joiner.library.merging.partition.MergeError` if a topic is another one now, and no
        other replica is complete.
        """
        applications = frozenset(replica_name(application, replica) for replica in range(replicas))
        self._topic, self._numbers = topic, sorted(set(partitions))
        self._merged: dict[Place, MergedPartition] = {
            (topic, number): MergedPartition(ReplicaUnion(replicas, remembered_max), applications, time_unit)
            for number in self._numbers
        }
        sources = {
            (replica_name(topic, replica), number): Source(replica, (topic, number))
            for replica in range(replicas)
            for number in self._numbers
        }
        saved = self._decoded(state)
        self._names = [replica_name(topic, replica) for replica in range(replicas)]
        admin = AdminClient({name: value for name, value in config.items() if name != "group.id"})
        self._ids = {name: facts.topic_id for name, facts in topic_facts(admin, self._names).items()}
        self._consumer = Consumer({"group.id": f"{application}-merged-reader", **SHORT_QUEUE, **config, **_FORCED})
        try:
            self._inputs = ReplicaInputs(self._consumer, sources, self._merged, self._restored(saved))
        except BaseException:
            self._consumer.close()
            raise

    def read(self, count: int = 1_000, timeout_s: float = 1.0) -> list[Message]:
        """Return messages to process, in order. There may be none, also if some were read.

        Read at most ``count`` messages, and wait at most ``timeout_s`` for them. Raises KafkaException, and
        `joiner.library.merging.partition.MergeError` if results were lost or cannot be merged.
        """
        return [message for _, message in self._inputs.take(count, timeout_s)]

    @property
    def remembered(self) -> int:
        """The number of ids that are remembered, in all partitions."""
        return sum(partition.union.remembered for partition in self._merged.values())

    @property
    def complete(self) -> dict[int, list[int]]:
        """Per partition, the replicas that can deliver all results without the others."""
        return {number: partition.union.complete for (_, number), partition in self._merged.items()}

    def state(self) -> bytes:
        """Return what a reader needs to continue after the messages that were returned so far."""
        return msgspec.msgpack.encode(
            {
                "format": FORMAT_VERSION,
                "topic": self._topic,
                "ids": self._ids,
                "positions": [[*place, at] for place, at in self._inputs.positions().items()],
                "unions": [[number, one.union.state()] for (_, number), one in self._merged.items()],
            }
        )

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _decoded(self, state: bytes | None) -> dict[str, Any] | None:
        """Return what is in a state. Raises ValueError if it is none, or of something else."""
        if state is None:
            return None
        try:
            saved = _states.decode(state)
        except msgspec.DecodeError as error:
            message = f"this is not the state of a reader: {error}"
            raise ValueError(message) from error
        if (version := saved.get("format")) != FORMAT_VERSION:
            message = (
                f"the state was saved by another release (format {version}): use that one, or begin without a state"
            )
            raise ValueError(message)
        if saved.get("topic") != self._topic:
            message = f"the state is of the topic {saved.get('topic')!r}, not of {self._topic!r}"
            raise ValueError(message)
        return saved

    def _restored(self, saved: Mapping[str, Any] | None) -> dict[Place, int]:
        """Restore the unions, and return the positions. Partitions that the state does not have begin anew."""
        if saved is None:
            return {}
        ids = saved["ids"]
        replaced = {name for name in self._names if name in ids and ids[name] != self._ids.get(name)}
        for number, state in saved["unions"]:
            if number in self._numbers:
                place = self._topic, number
                union = self._merged[place].union
                try:
                    union.restore(state, partial(input_ends, self._consumer, union, place))
                except (KeyError, TypeError, ValueError) as error:
                    message = f"the state of partition {number} cannot be continued: {error!r}"
                    raise ValueError(message) from error
                self._lose(union, replaced, place)
        return {(topic, number): at for topic, number, at in saved["positions"] if topic not in replaced}

    def _lose(self, union: ReplicaUnion, replaced: set[str], place: Place) -> None:
        """Note that topics were deleted, and perhaps recreated, so that they are read from their beginning."""
        for replica, name in enumerate(self._names):
            if name in replaced and not union.lose(replica, input_ends(self._consumer, union, place)):
                message = (
                    f"topic {name} was deleted since the state was saved, and no other replica is complete in "
                    f"partition {place[1]}, so results are missing: begin without a state"
                )
                raise MergeError(message)
