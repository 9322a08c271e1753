"""The join itself, pure: batches of columns in, pair indices and effects out.

It does not know what a quantity, a topic or Spark is, and uses no clock, random number, log, file or thread.
The data's way through it: `arguments` (what is accepted), `frontier` (what is late, how far a stream is),
`order` (who is whose neighbour), `match` (which relations are certain), `held` (what can be forgotten),
`engine` (the buffer that joins them), `snapshot` (its bytes).
"""
