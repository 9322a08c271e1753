"""Compares the joiner with other engines on the same topics and machine, and checks every output.

``python -m bench.contest --help`` lists the options. The results are discussed in docs/benchmarks.md.
"""
