"""Decodes Arrow input and encodes results as Arrow.

This package requires the ``arrow`` extra, and is imported only if the settings select Arrow.
"""
