"""Writes the benchmark page and its plots, using only the result files."""
