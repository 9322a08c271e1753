"""Whatever a dead letter contains: it is described, and put back if and only if the joiner would accept its record."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from broker.partitioner import partition_of
from broker.wire.records import Record, Unreadable, decode_data, encode, reject
from control.actions.candidates import Candidate, candidate_of
from control.facts.dead_letters import DeadLetterIndex, describe
from tests.unit.control.letters_made import NOW_MS, letter_text, message
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, make_settings

SETTINGS = make_settings(partitions=2)
SKEW_MS = SETTINGS.application.max_future_skew // 1_000_000

TIMES = st.one_of(
    st.integers(BASE_MS - 10, BASE_MS + 10),
    st.integers(NOW_MS + SKEW_MS - 2, NOW_MS + SKEW_MS + 2),
    st.sampled_from(["2019-04-01T07:27:40+02:00", "yesterday", None, 1.5, -(2**70)]),
)
RECORDS = st.fixed_dictionaries(
    {
        "thing": st.one_of(st.sampled_from(["a", "b", "0", "1", ""]), st.text(max_size=3)),
        "quantity": st.sampled_from(["speed", "torque", "heat"]),
        "phenomenonTime": TIMES,
        "result": st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["1", None])),
        "id": st.text(max_size=2),
    }
).map(lambda one: json.dumps(one).encode())
VALUES = st.one_of(
    RECORDS,
    RECORDS.map(lambda one: one[:-2]),
    st.binary(max_size=20),
    st.just(json.dumps({"mark": BASE_MS}).encode()),
    st.none(),
)


def is_accepted(value: bytes | None) -> bool:
    """Return whether the joiner would join a record that arrives now in partition 0: the rules of docs/formats.md."""
    try:
        content, ts_ns = decode_data(value, "ms")
    except Unreadable:
        return False
    return (
        isinstance(content, Record)
        and content.quantity in {"speed", "torque"}
        and ts_ns <= (NOW_MS + SKEW_MS) * 1_000_000
        and partition_of(content.thing.encode(), 2) == 0
    )


@given(value=VALUES, corrected=st.none() | VALUES)
def test_a_record_is_put_back_if_and_only_if_the_joiner_would_accept_it(
    value: bytes | None, corrected: bytes | None
) -> None:
    found = candidate_of(SETTINGS, message(letter_text(value)), corrected, NOW_MS)
    chosen = value if corrected is None else corrected
    if is_accepted(chosen):
        assert chosen is not None
        thing = json.loads(chosen)["thing"]
        assert found == Candidate(DATA, 0, thing.encode(), chosen, f"{DATA}:0:3")
    else:
        assert isinstance(found, str)
        assert found


NUMBERS = st.one_of(st.integers(-3, 3), st.integers(-(2**80), 2**80), st.floats(), st.text(max_size=3))
HOSTILE = st.fixed_dictionaries(
    {
        "id": st.text(),
        "source": st.sampled_from(["lsb", "connector", "db_connector", "x"]) | st.text(),
        "reason": st.text(max_size=400),
        "topic": st.sampled_from([DATA, "machine.out"]) | st.text(),
        "length": NUMBERS,
        "sha256": st.text(max_size=64),
        "encoding": st.sampled_from(["utf-8", "base64", "utf-7"]),
        "value": st.text(),
    },
    optional={"partition": NUMBERS, "offset": NUMBERS, "row": NUMBERS, "more": NUMBERS},
).map(lambda one: json.dumps(one).encode())


@given(text=st.one_of(HOSTILE, st.binary(), st.none(), HOSTILE.map(lambda one: one[: len(one) // 2])))
@example(text=encode(reject(b"", "'" * 5_000, source="lsb", topic=DATA, partition=0, offset=0)))
def test_any_message_of_the_topic_can_be_described_and_shown_in_bounded_space(text: bytes | None) -> None:
    letter, content = describe(SETTINGS, 0, 0, NOW_MS, text)
    # JSON takes six bytes for a control character, and up to four for any other.
    assert len(msgspec.json.encode(letter)) < 6 * 6 * 300 + 1_000
    assert (content is None) == ("not a dead letter" in letter.refusal)
    assert isinstance(candidate_of(SETTINGS, message(text), None, NOW_MS), str)


SOURCES = st.sampled_from(["lsb", "connector"])


@given(
    letters=st.lists(
        st.tuples(st.sampled_from(["lsb", "connector"]), st.sampled_from(["a 1", "B 2", "c"])), max_size=30
    ),
    limit=st.integers(1, 7),
    source=st.sampled_from(["", "lsb", "connector", "x"]),
    reason=st.sampled_from(["", "a", "b #", "C", "2"]),
)
def test_the_pages_together_have_each_matching_letter_once_and_the_newest_first(
    letters: list[tuple[str, str]], limit: int, source: str, reason: str
) -> None:
    kept = DeadLetterIndex()
    texts = [letter_text(b"", why, source=by) for by, why in letters]
    kept.add(describe(SETTINGS, 0, offset, 0, text)[0] for offset, text in enumerate(texts))
    found: list[int] = []
    before: int | None = None
    for _ in range(len(letters) + 1):
        page = kept.page(before, limit, source, reason)
        assert len(page.letters) <= limit
        found += [one.number for one in page.letters]
        before = page.next
        if before is None:
            break
    kinds: dict[str, Any] = {"a 1": "a #", "B 2": "B #", "c": "c"}
    expected = [
        number
        for number, (by, why) in enumerate(letters, 1)
        if source in {"", by} and (reason.lower() in why.lower() or reason.lower() in kinds[why].lower())
    ]
    assert found == expected[::-1]
    assert page.matching == len(expected)
