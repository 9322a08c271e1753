"""Measures the library in memory, without servers."""
