"""The servers of the local stack: Kafka, an MQTT broker and InfluxDB.

This module defines each server's configuration (generated from a template), its command and its readiness check. Each
server has its own folder for configuration, data, log, pid file and ports, and keeps its ports and data when stopped,
killed, paused or restarted. All servers listen on the loopback interface only.

``parts`` downloads the programs, ``child`` manages the process of one server, and ``local`` manages all servers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import urllib.error
import urllib.parse
import urllib.request
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import ClassVar, Final

from broker.stack.child import Child, wait_until
from broker.stack.errors import CancelledError, StackError
from broker.stack.parts import KAFKA_VERSION, Parts
from broker.stack.ports import LOOPBACK, choose_port, is_free

READY_DEADLINE_S: Final = 90.0
"""Deadline for starting a server. The slowest start observed took 15 s: Kafka's first start on two busy cores."""

STOP_DEADLINE_S: Final = 30.0
"""Deadline for cleanly shutting down a server. Kafka, which flushes its logs, takes 1-3 s."""

_PROBE_TIMEOUT_S: Final = 2.0
_LOG_LINES_SHOWN: Final = 15
_PORTS: Final = "ports.json"
_IDENTITY: Final = "meta.properties"
"""The file in Kafka's data folder that contains the id of the cluster."""
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""An HTTP client that ignores the proxy settings in the environment, because the server is on this machine."""
_TEMPLATES: Final = Path(__file__).with_name("templates")

_quiet = logging.getLogger(__name__ + ".probe")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


class Server(ABC):
    """Base class of the servers. ``LocalStack`` creates them. Every method may be called at any time."""

    name: ClassVar[str]
    usual_ports: ClassVar[Mapping[str, int | None]]
    """Maps the name of each port that the server needs to the usual port number. None means any free port."""

    def __init__(self, folder: Path, parts: Parts, *, usual_ports: bool) -> None:
        self.folder = folder
        self._parts = parts
        self._usual = usual_ports
        self._child = Child(folder / "pid", folder / "log")

    @property
    def log(self) -> Path:
        """The log file of the server."""
        return self._child.log

    @property
    def data(self) -> Path:
        """The folder that ``wipe`` removes."""
        return self.folder / "data"

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        return self._child.pid

    @property
    def paused(self) -> bool:
        """Whether the server is suspended by ``pause``."""
        return self._child.paused

    @property
    def port(self) -> int:
        """The port on which the server accepts clients. Raises ``StackError`` if the server was never started."""
        return self._ports()["port"]

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    @abstractmethod
    def settings(self) -> dict[str, str]:
        """The environment variables that tell clients where to find this server."""

    @abstractmethod
    def problem(self) -> str | None:
        """Return why this server cannot start on this machine and how to fix that, or None if it can start."""

    @abstractmethod
    def fetch(self) -> None:
        """Download the program if it is missing."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether the server is running and accepts clients."""

    @abstractmethod
    def _prepare(self, ports: Mapping[str, int]) -> list[str]:
        """Write the server's configuration file, and return the command that starts the server."""

    def start(self) -> None:
        """Start the server's process if it is not running. Do not wait until the server is ready (see `wait_ready`)."""
        if self.pid is not None:
            return
        self.fetch()
        self.data.mkdir(parents=True, exist_ok=True)
        command = self._prepare(self._choose_ports())
        self._child.start(command, folder=self.folder, environment=self._environment())

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Wait until the server is ready.

        Raises ``StackError``, with the end of the server's log, if the server exits or is not ready in time, and
        ``CancelledError`` on `LocalStack.cancel`.
        """

        def is_decided() -> bool:
            return self._parts.cancel.is_set() or self.pid is None or self.is_ready()

        in_time = wait_until(is_decided, deadline_s)
        if self._parts.cancel.is_set():
            raise CancelledError(f"{self.name}: cancelled while starting")
        if self.pid is None:
            raise StackError(f"{self.name} exited while it was starting. {self._end_of_log()}")
        if not in_time:
            raise StackError(
                f"{self.name} did not answer at {self.address} within {deadline_s:.0f} s. {self._end_of_log()}"
            )

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> bool:
        """Send SIGTERM to the server and, if it is still running after ``deadline_s``, SIGKILL.

        Return whether the server exited before the deadline, or was not running.
        """
        return self._child.stop(deadline_s)

    def kill(self) -> None:
        """Send SIGKILL, to simulate a crash."""
        self._child.kill()

    def pause(self) -> None:
        """Suspend the server with SIGSTOP. To its clients, it seems to hang."""
        self._child.pause()

    def resume(self) -> None:
        """Continue a paused server with SIGCONT."""
        self._child.resume()

    def wipe(self) -> None:
        """Remove the data of a stopped server. Raises ``StackError`` if the server is running."""
        if self.pid is not None:
            raise StackError(f"{self.name} is running as process {self.pid}; stop it before removing its data")
        shutil.rmtree(self.data, ignore_errors=True)

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _ports(self) -> dict[str, int]:
        try:
            ports = json.loads((self.folder / _PORTS).read_text())
            return {str(name): int(port) for name, port in ports.items()}
        except FileNotFoundError:
            raise StackError(f"{self.name} was never started in {self.folder}; start it first") from None
        except (ValueError, TypeError, AttributeError):
            raise StackError(f"{self.folder / _PORTS} is damaged; start {self.name} to rewrite it") from None

    def _choose_ports(self) -> dict[str, int]:
        """Return the ports from the previous start if they are still free. Otherwise choose new ports and save them."""
        with contextlib.suppress(StackError):
            ports = self._ports()
            if all(is_free(port) for port in ports.values()):
                return ports
        ports = {name: choose_port(usual if self._usual else None) for name, usual in self.usual_ports.items()}
        # Write the file atomically; otherwise a kill could leave an incomplete file.
        place = self.folder / f"{_PORTS}.new"
        place.write_text(json.dumps(ports))
        place.replace(self.folder / _PORTS)
        return ports

    def _write(self, template: str, values: Mapping[str, object]) -> Path:
        text = Template((_TEMPLATES / template).read_text()).substitute(values)
        place = self.folder / template
        place.write_text(text)
        return place

    def _end_of_log(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return f"The end of {self.log}:\n    " + "\n    ".join(lines)


class Kafka(Server):
    """Apache Kafka in KRaft mode, with broker and controller in one process."""

    name = "kafka"
    usual_ports: ClassVar[Mapping[str, int | None]] = {"port": 9092, "controller_port": None}

    more: Mapping[str, str] = MappingProxyType({})
    """Additional server properties, which override the template's and take effect at the next start. ``${port}`` and
    ``${controller_port}`` are replaced by the port numbers."""

    java_options: Sequence[str] = ("-Xms256m", "-Xmx768m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
    """JVM options. The heap is smaller than Kafka's default of 1 GB, because Kafka keeps its log in the page cache, not
    on the heap."""

    @property
    def settings(self) -> dict[str, str]:
        return {"LSB_KAFKA__BOOTSTRAP_SERVERS": self.address}

    def problem(self) -> str | None:
        return self._parts.problem_kafka()

    def fetch(self) -> None:
        self._parts.kafka()

    def is_ready(self) -> bool:
        if is_free(self.port):
            return False
        # Import the package only here, so that the stack's other commands work without it. If the package is missing,
        # `Parts.problem_kafka` reports it.
        from confluent_kafka import KafkaException  # noqa: PLC0415 - see above
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - see above

        client = AdminClient({"bootstrap.servers": self.address}, logger=_quiet)
        try:
            return len(client.list_topics(timeout=_PROBE_TIMEOUT_S).brokers) == 1
        except KafkaException:
            return False

    def _prepare(self, ports: Mapping[str, int]) -> list[str]:
        log_config = self._write("kafka-log4j2.properties", {})
        jars = self._parts.kafka()
        java = self._parts.java()
        if java is None:
            raise StackError("kafka: java is missing")
        run = [java, *self.java_options, f"-Dlog4j2.configurationFile={log_config}", "-cp", f"{jars}/*"]
        if not (self.data / _IDENTITY).exists():
            self._format(run, ports)
        config = self._write("kafka.properties", {**ports, "data": self.data})
        with config.open("a") as file:
            # Append the additional properties to the template's: if a property is set twice, Kafka uses the last line.
            file.writelines(f"{name}={Template(value).substitute(ports)}\n" for name, value in self.more.items())
        return [*run, "kafka.Kafka", str(config)]

    def _format(self, run: Sequence[str], ports: Mapping[str, int]) -> None:
        """Write the first files of the data folder, with an identity of its own.

        They differ only in the identity. Kafka's tool, which takes seconds, therefore makes them once, and they are
        copied.
        """
        formatted = self._parts.folder / f"kafka-{KAFKA_VERSION}-formatted"
        with self._parts.once(formatted) as draft:
            if draft is not None:
                config = self._write("kafka.properties", {**ports, "data": draft})
                command = [*run, "kafka.tools.StorageTool", "format", "-t", _new_identity(), "-c", str(config)]
                self._parts.run("kafka", command, is_download=False)
        for file in formatted.iterdir():
            if file.name != _IDENTITY:
                shutil.copy(file, self.data)
        text = re.sub(r"(?m)^cluster\.id=.*$", f"cluster.id={_new_identity()}", (formatted / _IDENTITY).read_text())
        # Last, because a folder that has this file counts as formatted.
        (self.data / _IDENTITY).write_text(text)


class Mqtt(Server):
    """HiveMQ Community Edition, an MQTT 5, 3.1.1 and 3.1 broker that stores sessions and queued messages on disk."""

    name = "mqtt"
    usual_ports: ClassVar[Mapping[str, int | None]] = {"port": 1883}

    _CONNECT: Final = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x0a\x00\x00"
    """An MQTT 3.1.1 CONNECT packet with a clean session, a keep-alive of 10 s and no client id."""

    _CONNACK: Final = b"\x20\x02\x00\x00"

    _JAVA_OPTIONS: Final = (
        # These options speed up JVM startup, which matters more than peak throughput because the broker has few threads
        # and little data.
        *("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        # HiveMQ's own start script opens the same packages, which HiveMQ needs for its buffers and statistics.
        *("--add-opens", "java.base/java.lang=ALL-UNNAMED", "--add-opens", "java.base/java.nio=ALL-UNNAMED"),
        *(
            "--add-opens",
            "java.base/sun.nio.ch=ALL-UNNAMED",
            "--add-exports",
            "java.base/jdk.internal.misc=ALL-UNNAMED",
        ),
    )

    @property
    def settings(self) -> dict[str, str]:
        return {
            "LSB_MQTT__HOST": LOOPBACK,
            "LSB_MQTT__PORT": str(self.port),
            # The simulator's variables have no prefix, so it needs the host and port under these names.
            "BROKER_HOST": LOOPBACK,
            "BROKER_PORT": str(self.port),
        }

    def problem(self) -> str | None:
        return self._parts.problem_mqtt()

    def fetch(self) -> None:
        self._parts.hivemq()

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=_PROBE_TIMEOUT_S) as link:
                link.sendall(self._CONNECT)
                return link.recv(len(self._CONNACK)) == self._CONNACK
        except OSError:
            return False

    def command(self, folder: Path) -> list[str]:
        """Return the command that starts a broker whose ``conf/config.xml`` and ``data`` are in ``folder``."""
        java = self._parts.java()
        if java is None:
            raise StackError("mqtt: java is missing")
        run = [java, *self._JAVA_OPTIONS, "-cp", f"{self._parts.hivemq()}/*", "org.codehaus.janino.SimpleCompiler"]
        return [*run, str(_TEMPLATES / "MqttBroker.java"), "MqttBroker", str(folder)]

    def _prepare(self, ports: Mapping[str, int]) -> list[str]:
        conf = self.folder / "conf"
        conf.mkdir(exist_ok=True)
        self._write("hivemq.xml", ports).replace(conf / "config.xml")
        shutil.copy(_TEMPLATES / "hivemq-logback.xml", conf / "logback.xml")
        return self.command(self.folder)


class Influxdb(Server):
    """InfluxDB 1.8 with Flux and the v2 write API."""

    name = "influxdb"
    usual_ports: ClassVar[Mapping[str, int | None]] = {"port": 8086, "rpc_port": None}

    DATABASE: Final = "lsb"

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://{self.address}"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "LSB_INFLUXDB__URL": self.url,
            "LSB_INFLUXDB__ORG": "-",
            "LSB_INFLUXDB__BUCKET": f"{self.DATABASE}/autogen",
            # An empty user name and password: on the loopback interface the server requires no authentication.
            "LSB_INFLUXDB__TOKEN": ":",
        }

    def problem(self) -> str | None:
        return self._parts.problem_influxdb()

    def fetch(self) -> None:
        self._parts.influxd()

    def is_ready(self) -> bool:
        try:
            self.create_database(self.DATABASE)
        except (OSError, urllib.error.URLError):
            return False
        return True

    def create_database(self, name: str) -> None:
        """Create a database if it does not exist. In the v2 API its bucket is called ``<name>/autogen``."""
        query = urllib.parse.urlencode({"q": f'CREATE DATABASE "{name}"'}).encode()
        with _DIRECT.open(f"{self.url}/query", query, timeout=_PROBE_TIMEOUT_S) as answer:
            answer.read()

    def _prepare(self, ports: Mapping[str, int]) -> list[str]:
        config = self._write("influxdb.conf", {**ports, "data": self.data})
        return [str(self._parts.influxd()), "run", "-config", str(config)]

    def _environment(self) -> dict[str, str]:
        # Remove the user's own INFLUXDB_ variables, which would override the configuration file.
        return {name: value for name, value in os.environ.items() if not name.startswith("INFLUXDB_")}


def _new_identity() -> str:
    """Return a new id for a Kafka cluster."""
    return uuid.uuid4().hex[:22]
