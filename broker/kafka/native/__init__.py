"""Reads and writes messages as columns by calling librdkafka directly, without creating an object per message.

confluent_kafka still creates, configures, assigns, polls and closes the clients, so settings, TLS, SASL, statistics,
logs and transactions work as usual. Only reading and writing, the two operations that run for every message, bypass
confluent_kafka. Start with `reader` and `writer`; `library` describes what they rely on and when they are unavailable.
"""
