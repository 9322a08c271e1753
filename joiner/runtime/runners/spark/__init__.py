"""The joiner as a stage in Spark: the driver plans and commits batches, and the workers join them.

This package may import what `runners` may. Start with `stage`, then read `units`.
"""
