"""Kafka -> InfluxDB: every joined pair becomes one point, written at least once, overwritten by a replay.

points.py     a pair -> a line of line protocol; pure
database.py   the client library, and what each answer of the database means
writer.py     batches, back-off, the search for refused points; knows neither Kafka nor HTTP
letters.py    dead letters
service.py    Kafka: consuming, pausing, committing after the acknowledgement
"""
