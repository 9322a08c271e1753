"""A Kafka log with a corrupt batch, which can be repaired.

Kafka does not verify the batches that it serves. A consumer that checks CRCs gets an error in place of the batch,
followed by the records after it.
"""

from __future__ import annotations

from broker.stack import LocalStack


class DamagedLog:
    """The only segment of a partition, with the first byte of ``text`` changed."""

    def __init__(self, stack: LocalStack, topic: str, partition: int, text: bytes) -> None:
        """Corrupt the segment. ``text`` must occur in it exactly once, uncompressed."""
        (self._path,) = stack.kafka.data.glob(f"**/{topic}-{partition}/00000000000000000000.log")
        content = self._path.read_bytes()
        assert content.count(text) == 1, f"{text!r} occurs {content.count(text)} times in {self._path}"
        self._at, self._was = content.index(text), text[:1]
        self._write(bytes([self._was[0] ^ 1]))

    def mend(self) -> None:
        """Restore the original byte."""
        self._write(self._was)

    def _write(self, byte: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(self._at)
            file.write(byte)
