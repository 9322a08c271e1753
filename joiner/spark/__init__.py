"""The join in Spark: `neighbour_join`, for streaming and batch DataFrames."""

from joiner.spark.frames import neighbour_join

__all__ = ["neighbour_join"]
