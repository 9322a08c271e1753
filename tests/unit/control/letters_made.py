"""Messages of the topic for dead letters, for tests."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Final

from broker.wire.records import encode, reject
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA

NOW_MS: Final = BASE_MS + 10_000


def record_text(**changed: Any) -> bytes:
    """Return the value of a record of the application of `make_settings`, with some members changed."""
    content = {"thing": "a", "quantity": "speed", "phenomenonTime": BASE_MS, "result": 1.5, "id": "e1"}
    return json.dumps(content | changed).encode()


def letter_text(value: bytes | None, reason: str = "a reason", **changed: Any) -> bytes:
    """Return a dead letter that the application ``lsb`` has written for a message with this value."""
    place: dict[str, Any] = {"source": "lsb", "topic": DATA, "partition": 0, "offset": 3}
    return encode(reject(value, reason, **(place | changed)))


def message(value: bytes | None, partition: int = 0, offset: int = 7, key: bytes | None = None) -> Any:
    """Return a message as the Kafka client does."""
    return SimpleNamespace(
        partition=lambda: partition,
        offset=lambda: offset,
        key=lambda: key,
        value=lambda: value,
        timestamp=lambda: (2, NOW_MS),
        error=lambda: None,
    )
