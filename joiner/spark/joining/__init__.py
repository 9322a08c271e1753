"""`neighbour_join`, the neighbour join of two DataFrames."""
