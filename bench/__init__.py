"""Benchmarks against peers on seeded data. Their results are ratios within one run."""
