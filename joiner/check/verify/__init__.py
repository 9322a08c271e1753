"""Compares the actual outputs with the expected ones, in the topics, in the database, and for an events file.

This package may import `model` and `found`. Start with `outputs`.
"""
