"""Imports an events file straight into Kafka, without an MQTT broker."""
