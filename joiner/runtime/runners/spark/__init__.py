"""The joiner as a Spark job: each task is a joiner instance, and the driver starts and stops the instances.

This package may import what `runners` may. Start with `stage`.
"""
