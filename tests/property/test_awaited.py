"""Each committed offset is told once, and soon after no transaction may change it any more, whatever the others do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from joiner.runtime.repartition.awaited import ALONE_S, SELDOM_S
from tests.unit.joiner.runtime.repartition.test_awaited import Awaiting

COUNT_MAX = 6
ASKS_MAX = 20

TOGETHER_MAX = int(ALONE_S / SELDOM_S) + 1
"""How many of the requests, one every `SELDOM_S`, ask for all partitions together."""


@given(
    st.integers(1, COUNT_MAX),
    st.dictionaries(st.integers(0, COUNT_MAX - 1), st.integers(0, ASKS_MAX)),
    st.sets(st.integers(0, COUNT_MAX - 1)),
    st.integers(0, ASKS_MAX),
)
def test_each_offset_is_told_once_and_soon(
    count: int, ends: dict[int, int], revoked: set[int], revoked_at: int
) -> None:
    """``ends``: when the transactions of partitions end, in requests. Some partitions are revoked at some time."""
    awaiting = Awaiting(count)
    told: dict[int, int] = {}
    for number in range(ASKS_MAX + COUNT_MAX + TOGETHER_MAX + 2):
        awaiting.consumer.open = {partition for partition, end in ends.items() if end > number}
        if number == revoked_at:
            for partition in revoked:
                awaiting.awaited.remove(("t", partition))
        for partition in awaiting.told():
            assert partition not in told
            assert partition not in awaiting.consumer.open
            assert partition not in revoked or number < revoked_at
            told[partition] = number
        awaiting.clock.sleep(SELDOM_S)
    for partition in set(range(count)) - revoked:
        assert told[partition] - max(ends.get(partition, 0), TOGETHER_MAX) <= count
