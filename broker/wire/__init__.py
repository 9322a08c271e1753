"""Encodes and decodes the values of the pipeline's topics, as single records and as columns. Start with `records`.

This package does not use Kafka: it converts between bytes and records.
"""
