"""The actual outputs, as read from Kafka, and the findings of a check. Start reading at `evidence`."""
