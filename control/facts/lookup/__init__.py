"""What is read from Kafka only on request: what is held for each thing, and the records of one thing."""
