"""Aligned rows: for each record of a driver or tick of a grid, the values of other streams at its time.

Like `joiner.core`, which it builds on, this package is pure: it takes arrays and returns arrays. The only project
package it may import is `joiner.core`. Start with `rules` (a column's options), then read `buffer` (aligns streams
batch by batch) and `tables` (finds neighbours and values for whole tables in one pass).

`driver_rows` computes the rows of a driver: `relations` finds the neighbours in a column's stream, and `pending_rows`
holds the rows whose columns are not yet certain. Both use a `position_table` for storage. `grid_rows` computes the rows
of a grid: `grid` finds the ticks, and `record_lists` holds the columns' records. `interpolation` computes interpolated
values.
"""
