"""Benchmarks on seeded data, against peers. Only ratios within one run are meaningful."""
