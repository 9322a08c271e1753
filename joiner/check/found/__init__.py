"""The actual outputs: records read from Kafka, and the findings of a check. Begin with `evidence`."""
