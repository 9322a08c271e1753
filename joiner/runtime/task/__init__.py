"""One unit: it turns messages into results and a state.

It uses no Kafka, clock or threads, not even indirectly, so that every runner and every test can drive it. The exception
is `function_failures`, whose caller passes a clock.
May import `joiner.core`, `broker` and, of the runtime, the settings and the checkpoint's records.
Start with `unit`: it decodes messages (`decode`), joins and aligns them (`operators`), applies the joining function
(`emit`) and saves itself (`unit_snapshot`).
"""
