"""The join in Spark."""
