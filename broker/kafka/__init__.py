"""Code shared by the Kafka clients of all services: topics, a producer that survives outages, and the client log."""
