"""The join in Spark: the application stage, which runs what the plain process runs."""
