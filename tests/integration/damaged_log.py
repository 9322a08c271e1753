"""A log of Kafka in which one batch of records is damaged, and whole again later.

Kafka does not look at what it hands out: a consumer that checks sums is told of an error in the place of the batch,
and is given what lies behind it.
"""

from __future__ import annotations

from broker.stack import LocalStack


class DamagedLog:
    """The only segment of one partition, with a byte changed wherever a text stands in it."""

    def __init__(self, stack: LocalStack, topic: str, partition: int, text: bytes) -> None:
        """Damage it. ``text`` must be in the log, which is not compressed."""
        (self._path,) = stack.kafka.data.glob(f"**/{topic}-{partition}/00000000000000000000.log")
        content = self._path.read_bytes()
        assert content.count(text) == 1, f"{text!r} is {content.count(text)} times in {self._path}"
        self._at, self._was = content.index(text), text[:1]
        self._write(bytes([self._was[0] ^ 1]))

    def mend(self) -> None:
        """As it was."""
        self._write(self._was)

    def _write(self, byte: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(self._at)
            file.write(byte)
