"""The pages whose contents are read from Kafka while they are visible."""
