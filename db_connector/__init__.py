"""From Kafka to InfluxDB: writes each joined pair as one point, at least once. Replays overwrite the same points.

points.py    a pair -> a line of line protocol; pure
database.py  the client library, and how to interpret the database's answers
writer.py    batches, back-off, the search for refused points; without Kafka or HTTP
kafka/       the consumer and its partitions, commits, lag, batches, dead letters
service.py   the loop: read, write, dead letters, commit
"""
