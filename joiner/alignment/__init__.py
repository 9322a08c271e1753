"""Aligned rows: for each record of a driver or tick of a grid, the values of other streams at its time.

Like `joiner.core`, on which it builds, this package is pure: it takes arrays and returns arrays. Of the
project's packages, it may import only `joiner.core`. Start reading at `rules` (the options of a column), then `buffer`
(aligns streams batch by batch) and `tables` (finds neighbours and values for whole tables in one pass).

`driver_rows` computes the rows of a driver: `relations` finds the neighbours in a column's stream, and `pending_rows`
holds the rows whose columns are not yet certain. Both store what they hold in a `position_table`. `grid_rows` computes
the rows of a grid: `grid` finds the ticks, and `record_lists` holds the columns' records. `interpolation` computes
interpolated values.
"""
