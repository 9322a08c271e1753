"""What is read from Kafka only when somebody asks: what is held for each thing, and the records of one thing."""
