"""The operators for Spark: `neighbour_join` joins DataFrames, and `align` adds columns to one. Both accept streams."""

try:
    import pyspark  # noqa: F401 - first, because the extra is named after it

    from joiner.spark.aligning.frames import align
    from joiner.spark.joining.frames import neighbour_join
except ModuleNotFoundError as error:
    if error.name not in {"pandas", "pyarrow", "pyspark"}:
        raise
    raise ImportError(f"{error.name} is not installed: pip install 'localstreambuffer[spark]'") from error

__all__ = ["align", "neighbour_join"]
