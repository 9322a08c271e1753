"""The local stack: real Kafka, a real MQTT broker and real InfluxDB as child processes on this machine.

For users it is a command (``python -m broker.stack --help``), for tests a library (``LocalStack``,
``ephemeral_stack``) whose servers can be killed, paused and started again on the same ports. It is for
development, demonstrations and tests: it listens on the loopback only and asks nobody for a password.

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
