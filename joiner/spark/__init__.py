"""Provides the join for Spark: `neighbour_join` joins two streaming or batch DataFrames."""

try:
    from joiner.spark.frames import neighbour_join
except ModuleNotFoundError as error:
    if error.name not in {"pandas", "pyarrow", "pyspark"}:
        raise
    raise ImportError(f"{error.name} is not installed: pip install 'localstreambuffer[spark]'") from error

__all__ = ["neighbour_join"]
