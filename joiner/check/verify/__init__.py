"""Compares the actual outputs with the expected ones: in the topics, against an events file, and in the database.

This package may import `model` and `found`. Start reading at `outputs`.
"""
