"""The Kafka side of the database connector: consumption, offset commits, lag, batches and dead letters.

Start reading at `reader`. Nothing here depends on the database.
"""
