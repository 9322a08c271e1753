"""The joiner compared with other engines: same topics, same machine, every output checked against the expected one.

``python -m bench.contest --help`` lists what can be run; docs/benchmarks.md has the findings.
"""
