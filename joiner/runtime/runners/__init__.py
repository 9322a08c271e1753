"""Executes units: `process` is the plain process, and `spark` runs plain processes as tasks in Spark.

This package may import every other package of the runtime, but not `joiner.cli`. Start with `process`.
"""
