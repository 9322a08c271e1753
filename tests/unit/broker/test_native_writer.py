"""What a writer of columns does if the producer fails while its queue is full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.native import writer as module
from broker.kafka.native.writer import NativeWriter
from broker.wire.columns import StringColumn

_WORDS, _ERROR = 4, 3


def test_the_error_of_a_producer_that_is_fenced_while_its_queue_is_full_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any other error counts as a defect, after which the unit is not claimed again."""
    memory = SimpleNamespace(WORDS=_WORDS, ERROR=_ERROR, PAYLOAD=0, KEY=2)

    def refuse(*_given: object) -> int:
        made._messages[:, _ERROR] = KafkaError._QUEUE_FULL  # noqa: SLF001 - nothing else has the messages
        return 0

    def poll(_limit_s: float) -> None:
        raise SystemError("a callback returned a result with an exception set") from KafkaException(
            KafkaError(KafkaError._FENCED, "fenced by a newer instance", fatal=True)  # noqa: SLF001 - the public name
        )

    library = SimpleNamespace(
        rd_kafka_topic_new=lambda *_given: 1, rd_kafka_topic_destroy=lambda _topic: None, rd_kafka_produce_batch=refuse
    )
    for name, stand_in in {
        "load_loops": lambda: memory,
        "library": lambda: library,
        "handle_of": lambda _producer: 1,
        "current_handle": lambda _producer: 1,
    }.items():
        monkeypatch.setattr(module, name, stand_in)
    producer: Any = SimpleNamespace(poll=poll)
    made = NativeWriter(producer)
    with pytest.raises(KafkaException, match="fenced by a newer instance"):
        made.write("out", 0, None, StringColumn.of([b"value"]))
