"""Copies joined pairs and aligned rows from Kafka to InfluxDB, one point each, at least once.

A replayed result overwrites its own point.

points.py    converts a result to a line of line protocol; pure
database.py  calls the client library and interprets the database's responses
writer.py    writes batches, retries, and isolates rejected points; no Kafka or HTTP
kafka/       the consumer: partitions, commits, lag, batches and dead letters
service.py   the main loop: read, write, send dead letters, commit
progress.py  counters and their log lines, and the journal
metrics.py   the connector's Prometheus metrics
"""
