"""The runtime of an application: everything that can fail or wait. The join itself is in `joiner.core`.

`task` is one unit without Kafka; `kafka` reads and writes its logs; `ownership` claims and restores it; `migration`
moves it between sites; `runners` execute it, as a plain process or in Spark; `telemetry` counts. `joiner.cli` prints.
A package imports those named before it and the modules here, never one named after it. Begin with `runners.process`.
"""
