"""Executes one unit: turns input messages into results and updates the unit's state.

This package uses neither Kafka nor a clock nor threads, not even indirectly, so that any runner and any test can drive
it. The exception is `function_failures`, whose caller passes a clock. It may import `joiner.core`, `broker` and, from
the runtime, only the settings and the checkpoint's records.

Start reading at `unit`: it decodes messages (`decode`), joins and aligns them (`operators`), applies the joining
function (`emit`) and saves itself (`unit_snapshot`).
"""
