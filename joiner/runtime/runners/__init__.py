"""The runners, which execute units: `process` in its own loop, `spark` as a stage of a streaming query.

May import every other package of the runtime, but not `joiner.cli`. Both kinds of runner write the same results for the
same input.
Start with `process`.
"""
