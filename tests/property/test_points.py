"""A pair's line always parses back to its values, and different pairs never become the same point."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker.times import TIME_MAX_NS, TIME_MIN_NS
from broker.wire.records import Joined
from db_connector.sinks.points import point_line, tag_text
from db_connector.sinks.sink import UnrepresentableError
from tests.unit.db_connector.test_contract import Point, expected, joined, parse_line, split_lines

# Mostly characters that are special in line protocol, so that sequences of them are frequent.
names = st.text(st.sampled_from('a\\\\,= "#!~\n\t0é'), max_size=8) | st.text(max_size=20)
halves_of_ns = st.integers(2 * TIME_MIN_NS + 1, 2 * TIME_MAX_NS - 1) | st.integers(-5, 5)
numbers = st.floats(allow_nan=False, allow_infinity=False)
results = numbers | st.fixed_dictionaries({"left": numbers, "right": numbers})
ties = st.just("") | st.from_regex(r"[0-9]{1,3}-[0-9]{1,3}", fullmatch=True)


Identity = tuple[str, str, str, int, str]


def has_a_tag(name: str) -> bool:
    try:
        tag_text(name, "thing")
    except UnrepresentableError:
        return False
    return True


tags = names.filter(has_a_tag)
joins = tags.filter(lambda name: ":" not in name)
identities = st.tuples(joins, tags, tags, halves_of_ns, ties)
# No deadline: the machine may be busy.
everywhere = settings(deadline=None)


def line_of(pair: Joined) -> bytes:
    return point_line(pair, "joined", "ms")


@everywhere
@given(tags, tags, halves_of_ns, results, joins, ties)
def test_a_line_reads_back_as_what_went_in(
    thing: str, quantity: str, twice_ns: int, result: float | dict[str, float], join: str, tie: str
) -> None:
    pair = joined(thing, quantity, twice_ns, result, f"{join}:0:1:2", tie)
    assert parse_line(line_of(pair).decode()) == expected(pair, "joined", twice_ns)


@everywhere
@given(st.lists(st.tuples(tags, joins), min_size=2, max_size=4))
def test_lines_stay_apart_in_one_request(pairs: list[tuple[str, str]]) -> None:
    lines = [line_of(joined(thing, "q", identity=f"{join}:0:1:2")).decode() for thing, join in pairs]
    assert split_lines("\n".join(lines)) == lines


@everywhere
@given(identities, identities)
def test_different_pairs_are_different_points(one: Identity, other: Identity) -> None:
    assume(one != other)

    def point(identity: Identity) -> Point:
        join, thing, quantity, twice_ns, tie = identity
        return parse_line(line_of(joined(thing, quantity, twice_ns, identity=f"{join}:0:1:2", tie=tie)).decode())[0]

    assert point(one) != point(other)


@everywhere
@given(tags, halves_of_ns, ties, st.sampled_from([-1, 1]))
def test_neighbouring_half_nanoseconds_are_different_points(thing: str, twice_ns: int, tie: str, step: int) -> None:
    one = line_of(joined(thing, twice_ns=twice_ns, tie=tie))
    other = line_of(joined(thing, twice_ns=twice_ns + step, tie=tie))
    assert parse_line(one.decode())[0] != parse_line(other.decode())[0]
