"""The data that a check reads from Kafka, and the differences that it finds. Start reading at `evidence`."""
