"""The Kafka side of the database connector: consumer and partitions, offsets and lag, batches, dead letters.

Start reading at `reader`. Nothing here depends on the database.
"""
