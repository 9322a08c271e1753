"""Aligned rows: for each record of a driver, the values of other streams at its time.

Pure, like `joiner.core`, which it builds on: arrays in, arrays out. It may import `joiner.core` and nothing else. Begin
with `rules` (what a column may be), then `buffer` (streams, batch by batch) and `tables` (whole tables in one pass).
`relations` finds one neighbour of a column, `pending_rows` holds the rows that wait for a column, and `interpolation`
is the arithmetic of a value.
"""
