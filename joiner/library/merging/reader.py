"""Reads the results of replicas as if there were one application: whichever replica is first delivers a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import msgspec
from confluent_kafka import Consumer, Message

from joiner.library.merging.inputs import Place, ReplicaInputs, Source
from joiner.library.merging.partition import MergedPartition
from joiner.library.merging.protocol import REMEMBERED_MAX, ReplicaUnion
from joiner.library.merging.topics import replica_name

_FORCED: Final[dict[str, str | bool]] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}

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
    Without a state, it begins at the beginning of the topics. After an exception, continue from the last state.

    **Partitions.** A process reads the same partitions of all replicas, because it must remember what all of them
    wrote. They are given by hand. To share the partitions among processes, subscribe to the topic of replica 0 in a
    consumer group, read nothing from that consumer, and create a reader for the partitions that the group assigns. A
    group that subscribes to the topics of all replicas would not do, because it may assign the same partition of
    different topics to different processes.

    A reader also reads late and unmatched records and dead letters, by their topics. Dead letters of other programs,
    which are in the topic of replica 0, are returned as they are. Results in Arrow cannot be merged.
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

        ``topic``, ``application``: the names of replica 0. ``time_unit``: `events.time_unit`. ``state``: what `state`
        returned. Raises ValueError if it is of another topic, or if only a replica that no longer exists is complete.
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
        positions = self._restored(state)
        self._consumer = Consumer({"group.id": f"{application}-merged-reader", **config, **_FORCED})
        self._inputs = ReplicaInputs(self._consumer, sources, self._merged, positions)

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
                "topic": self._topic,
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

    def _restored(self, state: bytes | None) -> dict[Place, int]:
        """Restore the unions, and return the positions. Partitions that the state does not have begin anew."""
        if state is None:
            return {}
        try:
            saved = _states.decode(state)
        except msgspec.DecodeError as error:
            message = f"this is not the state of a reader: {error}"
            raise ValueError(message) from error
        if saved.get("topic") != self._topic:
            message = f"the state is of the topic {saved.get('topic')!r}, not of {self._topic!r}"
            raise ValueError(message)
        for number, union in saved["unions"]:
            if number in self._numbers:
                self._merged[self._topic, number].union.restore(union)
        return {(topic, number): at for topic, number, at in saved["positions"]}
