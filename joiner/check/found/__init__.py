"""What is there: records read from Kafka, and the findings of a check. Begin with `evidence`."""
