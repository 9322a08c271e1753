"""For every pair that has a line: it reads back as what went in, and no two different pairs share a point."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from broker.wire import Joined
from db_connector.points import UnrepresentableError, point_line
from tests.unit.test_db_connector_contract import Point, expected, joined, parse_line, split_lines

# Mostly what line protocol gives a meaning to, so that runs of it are common.
names = st.text(st.sampled_from('a\\\\,= "#!~\n\t0é'), max_size=8) | st.text(max_size=20)
halves_of_ns = st.integers(-(10**19) // 2, 10**19 // 2) | st.integers(-5, 5)
numbers = st.floats(allow_nan=False, allow_infinity=False)
results = numbers | st.fixed_dictionaries({"left": numbers, "right": numbers})
ties = st.just("") | st.from_regex(r"[0-9]{1,3}-[0-9]{1,3}", fullmatch=True)
identities = st.tuples(names, names, halves_of_ns, ties)


def line_of(pair: Joined) -> bytes:
    try:
        return point_line(pair, "joined", "ms")
    except UnrepresentableError:
        assume(condition=False)
        raise


@given(names, names, halves_of_ns, results, names, ties)
def test_a_line_reads_back_as_what_went_in(
    thing: str, quantity: str, twice_ns: int, result: float | dict[str, float], identity: str, tie: str
) -> None:
    pair = joined(thing, quantity, twice_ns, result, identity, tie)
    assert parse_line(line_of(pair).decode()) == expected(pair, "joined", twice_ns)


@given(st.lists(st.tuples(names, names), min_size=2, max_size=4))
def test_lines_stay_apart_in_one_request(pairs: list[tuple[str, str]]) -> None:
    lines = [line_of(joined(thing, "q", identity=identity)).decode() for thing, identity in pairs]
    assert split_lines("\n".join(lines)) == lines


@given(identities, identities)
def test_different_pairs_are_different_points(
    one: tuple[str, str, int, str], other: tuple[str, str, int, str]
) -> None:
    assume(one != other)

    def point(identity: tuple[str, str, int, str]) -> Point:
        thing, quantity, twice_ns, tie = identity
        return parse_line(line_of(joined(thing, quantity, twice_ns, tie=tie)).decode())[0]

    assert point(one) != point(other)


@given(names, halves_of_ns, ties, st.integers(-1, 1))
def test_neighbouring_half_nanoseconds_are_different_points(
    thing: str, twice_ns: int, tie: str, step: int
) -> None:
    assume(step != 0)
    one = line_of(joined(thing, twice_ns=twice_ns, tie=tie))
    other = line_of(joined(thing, twice_ns=twice_ns + step, tie=tie))
    assert parse_line(one.decode())[0] != parse_line(other.decode())[0]
