"""Sends records to a contender at a given rate, and measures the latency of its results."""
