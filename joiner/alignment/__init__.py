"""Aligned rows: for each record of a driver or tick of a grid, the values of other streams at its time.

Pure, like `joiner.core`, which it builds on: arrays in, arrays out. It may import `joiner.core` and nothing else. Begin
with `rules` (what a column may be), then `buffer` (streams, batch by batch) and `tables` (whole tables in one pass).
In `driver_rows` are the rows of a driver: `relations` finds one neighbour of a column, and `pending_rows` holds the
rows that wait for a column. In `grid_rows` are those of a grid: `grid` finds the ticks, and `record_lists` holds the
records of columns. `interpolation` is the arithmetic of a value.
"""
