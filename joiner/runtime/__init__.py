"""The joiner's runtime: all the code that can fail or block. The join itself is in `joiner.core`.

`task` executes one unit and does not access Kafka. `kafka` reads and writes a unit's logs. `ownership` claims and
restores units. `membership` assigns the units of a site to its instances. `migration` moves units between sites.
`telemetry` exports metrics. `runners` executes units, in a plain process or in Spark. Printing is left to `joiner.cli`.
A package may import the modules here and the packages listed before it, but none listed after it. Start reading at
`runners.process`.
"""
