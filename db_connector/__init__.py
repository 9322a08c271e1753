"""Kafka -> InfluxDB: every joined pair becomes one point, written at least once; a replay overwrites the same points.

points.py        a pair -> a line of line protocol; pure
results.py       a consumed batch: its lines, its offsets, the records without a line
database.py      the client library, and what each answer of the database means
writer.py        batches, back-off, the search for refused points; without Kafka or HTTP
dead_letters.py  the dead letters
reader.py        Kafka: assignment, errors, pauses
offsets.py       Kafka: commits of what the database has acknowledged
service.py       the loop: read, write, dead letters, commit
"""
