"""Any database response, whatever its status, headers and body, becomes an error that the writer handles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from influxdb_client.rest import ApiException

from db_connector.sinks.influxdb import _interpret
from db_connector.sinks.sink import WriteError

DIGITS = st.text("0123456789\u00b2\u0663-+. ", max_size=30) | st.integers(1, 10_000).map("9".__mul__)
"""Some of these characters are digits to `str.isdigit` but not to `int`."""
MESSAGES = DIGITS.map("partial write: dropped={}".format) | st.text()
BODIES = st.one_of(
    st.binary(),
    st.integers(1, 200_000).map(b"[".__mul__),
    MESSAGES.map(lambda text: f'{{"error":"{text}"}}'.encode("utf-8", "replace")),
    MESSAGES.map(lambda text: f'{{"message":["{text}"]}}'.encode("utf-8", "replace")),
)
HEADERS = st.dictionaries(st.sampled_from(["X-Influxdb-Version", "Retry-After", "Content-Type"]), DIGITS)


@given(status=st.integers(0, 999), body=BODIES, headers=HEADERS)
def test_every_answer_has_a_meaning(status: int, body: bytes, headers: dict[str, str]) -> None:
    answer: Any = SimpleNamespace(
        status=status, reason="", data=body, getheaders=lambda: headers, getheader=headers.get
    )
    error = ApiException(http_resp=answer)  # type: ignore[no-untyped-call] # untyped in the library
    assert isinstance(_interpret(error, "lsb/autogen", "http://127.0.0.1:8086", 1), WriteError)
