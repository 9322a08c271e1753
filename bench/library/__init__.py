"""Benchmarks of the library, which run in memory and without servers."""
