"""The joiner as a stage in Spark: the driver plans and commits, workers join.

May import what `runners` may, and of `joiner.spark` what finds grouping keys. Begin with `stage`, then `units`.
"""
