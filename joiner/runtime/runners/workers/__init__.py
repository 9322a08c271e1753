"""Runs several plain processes on one host, as workers, and decides how many are needed.

This package may import `kafka` and the modules of `runtime`. It does not run units itself. Start with `supervisor`.
"""
