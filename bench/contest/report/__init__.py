"""Writes the benchmark page and its plots, from the result files alone."""
