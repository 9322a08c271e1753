"""The local stack: real Kafka, a real MQTT broker and real InfluxDB as child processes on this machine.

A command for users (``python -m broker.stack --help``), a library for tests (``LocalStack``, ``ephemeral_stack``) whose
servers can be killed, paused and restarted on the same ports. It is for development, demonstrations and tests: it
listens on the loopback interface only, and has no passwords.

Not here: topics and wire formats; those are the other modules of ``broker``.
"""

from broker.stack.errors import MissingPartsError, StackError
from broker.stack.local import DEFAULT_FOLDER, LocalStack, ephemeral_stack
from broker.stack.servers import Influxdb, Kafka, Mqtt, Server

__all__ = [
    "DEFAULT_FOLDER",
    "Influxdb",
    "Kafka",
    "LocalStack",
    "MissingPartsError",
    "Mqtt",
    "Server",
    "StackError",
    "ephemeral_stack",
]
