"""Reads and writes messages as columns by calling librdkafka directly, without creating an object per message.

confluent_kafka still creates, configures, assigns, polls and closes the clients, so settings, TLS, SASL, statistics,
logs and transactions work as usual. Only the two calls that run for every message bypass it. Start with `reader` and
`writer`; `library` describes what this relies on and when it is unavailable.
"""
