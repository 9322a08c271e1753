"""What executes units: `process`, a loop of its own; `spark`, a stage of a streaming query.

May import every package of the runtime but `cli`. Each kind of runner writes the same for the same input.
Begin with `process`.
"""
