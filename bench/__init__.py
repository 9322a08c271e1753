"""Benchmarks that compare the joiner with other tools on seeded data. Only ratios within one run are meaningful."""
