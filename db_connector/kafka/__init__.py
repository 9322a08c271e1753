"""The Kafka side of the connector: the consumer and its partitions, offsets and lag, batches, dead letters.

Begin with `reader`. Nothing here knows the database.
"""
