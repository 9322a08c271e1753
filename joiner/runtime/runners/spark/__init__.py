"""The joiner as a stage in Spark: the driver plans and commits, workers join.

May import what `runners` may, and the state store settings of `joiner.spark`. Start with `stage`, then `units`.
"""
