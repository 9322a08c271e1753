"""Does the header of a copied message name the place of its original?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.origin import Origin, decode_origin, encode_origin

TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=249)
IDS = st.text("abcXYZ019_-+/", max_size=40)


@given(TOPICS, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), IDS)
def test_a_place_comes_back(topic: str, partition: int, offset: int, topic_id: str) -> None:
    origin = Origin(topic, partition, offset, topic_id)
    assert decode_origin(encode_origin(origin)) == origin


@pytest.mark.parametrize(
    "value",
    [b"", b"a/1", b"a/1/2/", b"a/1/2/i.", b"a/-1/2", b"a/01/2", b"a/1/x", b"\xff/1/2", b"a b/1/2"],
)
def test_anything_else_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError, match="is not the place of a message"):
        decode_origin(value)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_place_or_an_error(value: bytes) -> None:
    try:
        origin = decode_origin(value)
    except ValueError:
        return
    assert encode_origin(origin) == value
