"""Hostile input for all readers of external bytes: each case must yield a value or a clear error."""
