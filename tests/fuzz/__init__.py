"""Hostile input for everything that reads bytes from outside: a value or a clear error must come of each case."""
