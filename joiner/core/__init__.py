"""The join itself, pure: batches of columns in, positions of pairs out.

The core does not know quantities, topics or Spark, and uses no clock, random number, log, file or thread. Data passes
through it in this order: `arguments` (validation), `frontier` (late records, progress of a stream), `record_store`
(held records), `match` (certain relations, new pairs), `release` (records that can be evicted), `unmatched` (records
that cannot get into a pair any more). `backlog` keeps records that no step needs for now, `evaluate` applies the rules
in order, `engine` is the public buffer, `snapshot` its serialized form.
"""
