"""The Kafka side of the connector: the consumer and its partitions, offsets and lag, batches, dead letters.

Start reading at `reader`. Nothing here depends on the database.
"""
