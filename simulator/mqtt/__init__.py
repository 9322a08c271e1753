"""Sends messages over MQTT."""
