"""A runner's telemetry: metrics served over HTTP, and progress lines in the log.

This package may import `task`, `kafka` and `ownership`. No other code depends on what is counted here. Start with
`metrics`.
"""
