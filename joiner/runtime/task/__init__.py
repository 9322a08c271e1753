"""One unit: it turns messages into results and a state.

No Kafka, time or thread, not even transitively, so that every runner and every test can drive it. Only
`function_failures` uses a clock, which its caller passes.
May import `joiner.core`, `broker` and, of the runtime, the settings and the checkpoint's records.
Start with `unit`: it decodes messages (`decode`), joins them (`unit_join`), applies the joining function (`emit`) and
saves itself (`unit_snapshot`).
"""
