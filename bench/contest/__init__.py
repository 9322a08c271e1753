"""Compares the joiner with other engines on the same topics and machine, and checks every output.

``python -m bench.contest --help`` lists what can be run; docs/benchmarks.md has the findings.
"""
