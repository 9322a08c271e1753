"""Reads the input and writes the results as Arrow.

This package needs the extra ``arrow``, and is imported only if a setting asks for Arrow.
"""
