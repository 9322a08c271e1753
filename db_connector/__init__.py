"""Kafka -> InfluxDB: every joined pair becomes one point, written at least once; a replay overwrites the same points.

points.py    a pair -> a line of line protocol; pure
database.py  the client library, and what each answer of the database means
writer.py    batches, back-off, the search for refused points; without Kafka or HTTP
kafka/       the consumer and its partitions, commits, lag, batches, dead letters
service.py   the loop: read, write, dead letters, commit
"""
