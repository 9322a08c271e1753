"""Loads a contender at a given rate, and measures how late its results arrive."""
