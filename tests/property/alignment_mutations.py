"""The rules of aligned rows, each broken once."""

from __future__ import annotations

from typing import Final

from tests.property.mutation import ALIGNMENT, Mutation

ALIGNMENT_MUTATIONS: Final = (
    Mutation(
        "a row waits for all of its relations",
        "pending_rows.py",
        "table[_OPEN, at] -= 1",
        "table[_OPEN, at] = 0",
        ALIGNMENT,
    ),
    Mutation(
        "rows of one step are ordered by time",
        "pending_rows.py",
        "np.lexsort((rows[SEQ], rows[_TS], rows[_KEY]))",
        "np.lexsort((rows[_TS], rows[SEQ], rows[_KEY]))",
        ALIGNMENT,
    ),
    Mutation(
        "the tolerance of linear limits the gap between the two records",
        "pending_rows.py",
        "is_there &= spans <= np.uint64(rule.tolerance_ns)",
        "is_there &= spans < np.uint64(rule.tolerance_ns)",
        ALIGNMENT,
    ),
    Mutation(
        "linear needs both neighbours",
        "pending_rows.py",
        "np.logical_and.reduce([",
        "np.logical_or.reduce([",
        ALIGNMENT,
    ),
    Mutation(
        "angles take the shorter way round",
        "interpolation.py",
        "    elif way <= -period / 2:\n        way += period\n",
        "",
        ALIGNMENT,
    ),
    Mutation(
        "late and duplicate driver records have no row",
        "buffer.py",
        "np.concatenate((late_seq[DRIVER], duplicate_seq[DRIVER]))",
        "late_seq[DRIVER]",
        ALIGNMENT,
    ),
    Mutation(
        "a column has its own lateness",
        "buffer.py",
        "(lateness_ns, rule.lateness_ns)",
        "(lateness_ns, lateness_ns)",
        ALIGNMENT,
    ),
    Mutation(
        "a snapshot has the pending rows",
        "buffer.py",
        "table = self._pending.rows()",
        "table = self._pending.rows()[:, :0]",
        ALIGNMENT,
    ),
    Mutation(
        "released records of a column are dropped",
        "relations.py",
        "step.right_duplicate_seq, step.right_released_seq))",
        "step.right_duplicate_seq))",
        ALIGNMENT,
    ),
)
