"""Batches of the input: read as columns or as objects, sorted by unit and topic, with their gaps verified.

Start with `reader`. May import the clients of `joiner.runtime.kafka` and the native calls of `broker.kafka`.
"""
