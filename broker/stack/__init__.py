"""The local stack: real Kafka, MQTT broker and InfluxDB servers as child processes on this machine.

It is a command for users (``python -m broker.stack --help``) and a library for tests (``LocalStack``,
``ephemeral_stack``), which can kill, pause and restart the servers on the same ports. It is meant for development,
demonstrations and tests: the servers listen on the loopback interface only, and have no passwords.

Topics and wire formats are in the other modules of ``broker``.
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
