"""The data that a check reads from Kafka, and the differences it finds. Start with `evidence`."""
