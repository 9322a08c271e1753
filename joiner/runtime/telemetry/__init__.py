"""Telemetry of a runner: metrics over HTTP, and progress lines in the log.

May import `task`, `kafka` and `ownership`. No other code depends on these counts. Start with `metrics`.
"""
