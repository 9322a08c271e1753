"""The layout of librdkafka's messages in memory, and compiled loops that read and destroy messages.

A message is an ``rd_kafka_message_t`` (rdkafka.h). Its members are at the offsets below on every 64-bit platform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import types

from broker.kafka.native.library import library
from broker.wire.compiled import BYTES_OUT, INTS, INTS_OUT, compiled, copy_bytes, half_word_at, word_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]

# Register the librdkafka functions that the loops call. This must happen before any loop is loaded.
library()

_destroy: Any = types.ExternalFunction("rd_kafka_message_destroy", types.void(types.intp))
_timestamp: Any = types.ExternalFunction("rd_kafka_message_timestamp", types.int64(types.intp, types.intp))

ERROR, TOPIC, PARTITION, PAYLOAD, LENGTH, KEY, KEY_LENGTH, OFFSET, OPAQUE = range(9)
"""The members of a message, each in an 8-byte word. `ERROR` and `PARTITION` occupy only the lower half of theirs."""

WORDS: Final = 9

READ_ERROR, READ_TOPIC, READ_PARTITION, READ_PAYLOAD, READ_LENGTH, READ_OFFSET, READ_TIME = range(7)
"""The rows of the array that `describe` fills."""

ROWS: Final = 7

READ_KEY, READ_KEY_LENGTH = ROWS, ROWS + 1
"""The rows of the same array that `describe_keys` fills."""

ROWS_WITH_KEYS: Final = 9

_WORD: Final = 8


@compiled(types.void, INTS, types.Array(types.int64, 2, "C"), INTS_OUT)
def describe(messages: Ints, found: Ints, kind: Ints) -> None:
    """Copy the members of the messages at the given addresses to ``found``, one column per message.

    ``found``: int64, shape (`ROWS`, n) or wider. ``kind``: one word, to which librdkafka writes the kind of timestamp.
    """
    for at in range(len(messages)):
        message = messages[at]
        found[READ_ERROR, at] = half_word_at(message + ERROR * _WORD)
        found[READ_TOPIC, at] = word_at(message + TOPIC * _WORD)
        found[READ_PARTITION, at] = half_word_at(message + PARTITION * _WORD)
        found[READ_PAYLOAD, at] = word_at(message + PAYLOAD * _WORD)
        found[READ_LENGTH, at] = word_at(message + LENGTH * _WORD)
        found[READ_OFFSET, at] = word_at(message + OFFSET * _WORD)
        found[READ_TIME, at] = _timestamp(message, kind.ctypes.data)


@compiled(types.void, INTS, types.Array(types.int64, 2, "C"))
def describe_keys(messages: Ints, found: Ints) -> None:
    """Copy the addresses and lengths of the messages' keys to ``found``, one column per message.

    ``found``: int64, shape (`ROWS_WITH_KEYS`, n) or wider. The address of a null key is 0.
    """
    for at in range(len(messages)):
        found[READ_KEY, at] = word_at(messages[at] + KEY * _WORD)
        found[READ_KEY_LENGTH, at] = word_at(messages[at] + KEY_LENGTH * _WORD)


@compiled(types.void, INTS, INTS, INTS, BYTES_OUT)
def gather(address: Ints, start: Ints, end: Ints, data: Bytes) -> None:
    """For each address i, copy the bytes found there to ``data[start[i]:end[i]]``."""
    for at in range(len(address)):
        copy_bytes(data.ctypes.data + start[at], address[at], end[at] - start[at])


@compiled(types.void, INTS)
def destroy(messages: Ints) -> None:
    """Destroy the messages at the given addresses, so that librdkafka can reuse their memory."""
    for message in messages:
        _destroy(message)
