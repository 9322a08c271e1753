"""The join in Spark: `neighbour_join`, for anyone's streaming and batch DataFrames; `application`, the joiner there."""

from joiner.spark.frames import neighbour_join

__all__ = ["neighbour_join"]
