"""Whatever is put into a cache of sized values, it keeps the newest ones that fit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from joiner.mapping.framing import SizedCache


@given(st.integers(1, 20), st.integers(1, 6), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 25)), max_size=40))
def test_a_cache_keeps_the_newest_values_that_fit(
    size_max: int, count_max: int, given_values: list[tuple[int, int]]
) -> None:
    cache: SizedCache[int] = SizedCache(size_max, count_max)
    newest: list[tuple[int, int, int]] = []
    for number, (key, size) in enumerate(given_values):
        assert cache.put(key, number, size) == number
        newest = [one for one in newest if one[0] != key] + [(key, number, size)]
        while len(newest) > 1 and (len(newest) > count_max or sum(one[2] for one in newest) > size_max):
            del newest[0]
        wanted = {one[0]: one[1] for one in newest}
        assert {key: found for key in range(9) if (found := cache.get(key)) is not None} == wanted
