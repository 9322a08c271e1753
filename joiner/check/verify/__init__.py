"""Compares actual with expected outputs: topics, the events of a recording, points in the database.

May import `model` and `found`. Begin with `outputs`.
"""
