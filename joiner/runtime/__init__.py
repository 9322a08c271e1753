"""The runtime of an application: everything that can fail or block. The join itself is in `joiner.core`.

`task` is one unit, without Kafka. `kafka` reads and writes its logs. `ownership` claims and restores it. `migration`
moves it between sites. `telemetry` exports its metrics. `runners` execute it, in a plain process or in Spark.
`joiner.cli` prints. A package may import the modules here and the packages listed before it, but none listed after it.
Start with `runners.process`.
"""
