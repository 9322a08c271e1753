"""Hostile input for all readers of external bytes: each case must give a value or a clear error."""
