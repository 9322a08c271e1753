"""Reads and writes messages as columns, with the C library of confluent_kafka's clients, without an object a message.

Clients are made, configured, assigned, polled and closed by confluent_kafka, as everywhere; so settings, TLS, SASL,
statistics, logs and transactions are the same. Only the two calls that run for every message go past it. Begin reading
at `reader` and `writer`; `library` says on what this relies, and when it is not available.
"""
