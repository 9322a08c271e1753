"""A Kafka log with one corrupt batch, which can be repaired.

Kafka does not verify what it serves: a consumer that checks CRCs gets an error instead of the batch, and then the
records behind it.
"""

from __future__ import annotations

from broker.stack import LocalStack


class DamagedLog:
    """The only segment of a partition, in which the first byte of ``text`` is changed."""

    def __init__(self, stack: LocalStack, topic: str, partition: int, text: bytes) -> None:
        """Corrupt it. ``text`` must be in the log once, uncompressed."""
        (self._path,) = stack.kafka.data.glob(f"**/{topic}-{partition}/00000000000000000000.log")
        content = self._path.read_bytes()
        assert content.count(text) == 1, f"{text!r} is {content.count(text)} times in {self._path}"
        self._at, self._was = content.index(text), text[:1]
        self._write(bytes([self._was[0] ^ 1]))

    def mend(self) -> None:
        """Restore the original byte."""
        self._write(self._was)

    def _write(self, byte: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(self._at)
            file.write(byte)
