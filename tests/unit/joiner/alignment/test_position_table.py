"""The table that stores what buffers hold, by position."""

from __future__ import annotations

import random

import numpy as np

from joiner.alignment.position_table import PositionTable


def test_positions_that_two_tables_have_in_common_are_counted_without_removed_ones() -> None:
    draw = random.Random(3)
    for _ in range(200):
        (one, of_one), (other, of_other) = drawn_table(draw), drawn_table(draw)
        assert one.count_common(other) == other.count_common(one) == len(of_one & of_other)


def drawn_table(draw: random.Random) -> tuple[PositionTable, set[int]]:
    """Return a table from which some rows have been removed, and the positions of the others."""
    table, seqs = PositionTable(1), {number for number in range(40) if draw.random() < 0.5}
    table.append(np.array([sorted(seqs)], dtype=np.int64))
    removed = {number for number in seqs if draw.random() < 0.3}
    table.remove(table.find(np.array(sorted(removed), dtype=np.int64)))
    return table, seqs - removed
