"""Compares actual with expected outputs in topics, an events file and the database.

It may import `model` and `found`. Start reading at `outputs`.
"""
