"""Executes one unit: turns input messages into results and updates the unit's state.

This package uses neither Kafka nor a clock nor threads, not even indirectly, so that any runner and any test can drive
it. The exception is `function_failures`, whose caller passes a clock. From the runtime, the package may import only the
settings and the records of the state topic.

Start with `unit`. A unit decodes messages (`decoding`), joins and aligns their records (`operators`), applies the
joining functions (`emit`), and saves its state (`unit_snapshot`).
"""
