"""Why librdkafka cannot be called directly, in words that are true of the environment or the client."""

from __future__ import annotations

import sys

import pytest
from confluent_kafka import Consumer

from broker.kafka.native.library import Unavailable, handle_of, path_of_library


def test_an_unsupported_byte_order_is_named_in_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(Unavailable, match="little-endian Linux, but this is cpython on big-endian linux"):
        path_of_library()


def test_a_closed_client_has_no_handle_and_is_not_mistaken_for_an_unknown_version() -> None:
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "closed"})
    assert handle_of(consumer)
    consumer.close()
    with pytest.raises(Unavailable, match="the client is closed"):
        handle_of(consumer)
