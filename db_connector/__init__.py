"""Copies joined pairs and aligned rows from Kafka to a database or to standard output.

A result that is replayed replaces itself in a database, or is left out.

sinks/       the databases: how each stores a result, and what its answers mean
writer.py    writes batches, retries, and isolates rejected results; no Kafka, no database
kafka/       the consumer: partitions, commits, lag, batches and dead letters
service.py   the main loop: read, write, send dead letters, commit
progress.py  counters and their log lines, and the journal
metrics.py   the connector's Prometheus metrics
"""
