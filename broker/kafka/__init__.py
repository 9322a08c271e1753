"""What every service's Kafka clients share: topics, a lasting producer, the log of the client library."""
