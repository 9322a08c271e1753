"""The joiner as a job in Spark: each task is an instance of the joiner, and the driver starts and stops them.

This package may import what `runners` may. Start with `stage`.
"""
