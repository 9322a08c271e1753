"""The join itself, without side effects: it takes batches of columns and returns the positions of paired records.

The core knows nothing of quantities, topics or Spark, and uses no clock, random numbers, logging, files or threads. A
step passes through the modules in this order: `arguments` (validates the input), `frontier` (finds late records and
advances the frontiers), `record_store` (merges the new records with the held ones), `match` (finds certain relations
and new pairs), `unmatched` (finds records that can no longer be paired), `release` (finds records that can be evicted).
`evaluate` calls the last three. `backlog` sets aside records that the next steps will not need. `engine` contains the
public class, and `snapshot` serializes its state.
"""
