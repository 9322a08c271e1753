"""`align`, the aligned rows of DataFrames."""
