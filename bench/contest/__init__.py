"""The joiner beside other engines: the same topics, the same machine, every output compared with what is expected.

``python -m bench.contest --help`` lists what can be run; docs/benchmarks.md says what was found.
"""
