"""Encodes and decodes messages that hold many records or results as Arrow IPC streams, as defined in docs/formats.md.

This package requires the extra ``arrow``. Services import it only if a setting selects the Arrow format.
"""
