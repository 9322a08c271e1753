"""Benchmarks on seeded data, which compare the joiner with other tools. Only ratios within one run are meaningful."""
