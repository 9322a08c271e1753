"""Encodes and decodes messages that hold many records or results as Arrow IPC streams, as defined in docs/formats.md.

This package requires the ``arrow`` extra. Services import it only if their settings select the Arrow format.
"""
