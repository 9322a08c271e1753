"""The joiner as a stage in Spark: what the plain process runs, Kafka to Kafka, exactly once."""
