"""Telemetry of a runner: metrics over HTTP, and progress lines in the log.

May import `task`, `kafka` and `ownership`; nothing depends on what is counted here. Begin with `metrics`.
"""
