"""The two kinds of runner that execute units: `process` runs its own loop, `spark` is a stage in a streaming query.

Both kinds write the same results for the same input. This package may import every other package of the runtime, but
not `joiner.cli`. Start with `process`.
"""
