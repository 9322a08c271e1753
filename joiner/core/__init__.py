"""The join itself, pure: batches of columns in, pair indices and effects out.

It does not know what a quantity, a topic or Spark is, and uses no clock, random number, log, file or thread.
The data's way through it: `arguments` (what is accepted), `frontier` (what is late, how far a stream is),
`record_store` (what is held, and how new records come to it), `match` (which relations
are certain), `release` (what can be forgotten), `unmatched` (what may still get into a pair), `backlog` (what nothing
concerns for now), `engine` (the buffer that joins them), `snapshot` (its bytes).
"""
