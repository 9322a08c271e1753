"""The join for Spark: `neighbour_join` joins two streaming or batch DataFrames, `align` adds columns to a batch one."""

try:
    from joiner.spark.aligned_frames import align
    from joiner.spark.frames import neighbour_join
except ModuleNotFoundError as error:
    if error.name not in {"pandas", "pyarrow", "pyspark"}:
        raise
    raise ImportError(f"{error.name} is not installed: pip install 'localstreambuffer[spark]'") from error

__all__ = ["align", "neighbour_join"]
