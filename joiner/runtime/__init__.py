"""The runtime of an application: everything that can fail or wait. The join itself is in `joiner.core`.

`task` is one unit without Kafka. `kafka` reads and writes its logs. `ownership` claims and restores it. `migration`
moves it between sites. `telemetry` counts. `runners` execute it, as a plain process or in Spark. `joiner.cli` prints.
A package imports the modules here and packages named before it, never one named after it. Start with `runners.process`.
"""
