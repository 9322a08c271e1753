"""Merges the outputs of replicas: a union by id, in which every result is delivered once.

Start reading at `protocol`, which is pure. `MergedReader` (`reader`) reads from Kafka; it needs the extra ``kafka``.
"""
