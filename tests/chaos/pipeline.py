"""The whole pipeline for the chaos tests: services, real servers, and the wires between them.

    simulator -> MQTT -> connector -> Kafka <-> joiners one, two, three -> Kafka -> db_connector -> InfluxDB

Every connection between a service and a server goes through its own wire. The faults are in `schedule` and `play`.
`APPLICATIONS` lists the joiners' applications: a further one may read the results of the first one. Those with replicas
are in `replicated`.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bench.harness.wire import Wire, Wires, listeners
from broker.stack import LocalStack, ephemeral_stack
from broker.stack.ports import choose_port
from tests.chaos.limits import clock_variables, mount_disk, set_clock, unmount_disk
from tests.integration.forked import start_forked
from tests.integration.services import ROOT, kill

SERVERS: Final = ("mqtt", "kafka", "influxdb")

PARTITIONS: Final = 3
IN_FLIGHT_MAX: Final = 200
"""The maximum number of messages that the simulator has in flight. They are sent again after a kill."""

_SETTINGS: Final = """\
[kafka]
bootstrap_servers = "{kafka}"

[influxdb]
url = "{influxdb}"
org = "-"
bucket = "lsb/autogen"

[topics]
data = "{data}"
out = "{name}.out"
late = "{name}.late"
rejected = "{name}.rejected"
unmatched = "{name}.unmatched"
partitions = {partitions}

[mqtt]
topic = "{name}/states"

[connector]
client_id = "{name}"

[application]
name = "{name}"
snapshot_interval = "2s"
snapshot_records = 1500
session_timeout = "6s"
transaction_timeout = "10s"
standbys = {standbys}
replicas = {replicas}

{operators}
[db_connector]
group = "{name}-db"
measurement = "{name}"
instance = "db"
merged = {merged}
session_timeout = "6s"
batch_records = 500
backoff_max = "500ms"
request_timeout = "3s"
"""

OPERATORS: Final = """\
[[join]]
name = "power"
left = "actSpeed_C11"
right = "vaTorque_C11"
function = "joiner.functions:spindle_power"
output = "mechPower_C11"

[[join]]
name = "deviation"
left = "cmdSpeed_C11"
right = "actSpeed_C11"
function = "difference"
output = "speedDeviation_C11"
tolerance = "2s"
lateness = "500ms"
emit_unmatched = "both"

[[align]]
name = "spindle"
driver = "vaTorque_C11"
lateness = "500ms"

[align.columns]
speed = { stream = "actSpeed_C11", rule = "linear", tolerance = "5s", lateness = "1s" }
command = { stream = "cmdSpeed_C11", rule = "previous", tolerance = "10s" }
load = { stream = "vaLoad_C11", rule = "nearest", tolerance = "2s", on_missing = "drop" }
"""


@dataclass(frozen=True)
class JoinerApplication:
    """An application of joiners: its operators as TOML, and the instances that run it.

    ``reads``: the name of the application whose results it reads, or empty if it reads the connector's records.
    ``further``: the instances of each replica besides ``joiners``. ``mergers``: the processes that merge the replicas.
    """

    name: str
    joiners: tuple[str, ...]
    operators: str
    reads: str = ""
    further: tuple[tuple[str, ...], ...] = ()
    mergers: tuple[str, ...] = ()

    @property
    def replicas(self) -> tuple[tuple[str, ...], ...]:
        """The instances of each replica."""
        return self.joiners, *self.further

    @property
    def processes(self) -> tuple[str, ...]:
        """All processes of the application."""
        return *(name for replica in self.replicas for name in replica), *self.mergers


APPLICATIONS: Final = (JoinerApplication("first", ("one", "two", "three"), OPERATORS),)
"""In the order in which their input is complete. The connector writes for the first one, and the database has the
results of the last one. A new application needs a line here, and its joiners' faults in `schedule`."""

_KAFKA: Final = {
    # Expired transactions are aborted within one second instead of ten.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
}


@dataclass
class Service:
    """A service of a run: its command, and its process once started."""

    name: str
    module: str
    arguments: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def text(self) -> str:
        """Return the log of the service."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass
class ChaosStack:
    """The servers, shared by many runs, and the wires through which each service reaches them."""

    stack: LocalStack
    wires: Wires
    mqtt: dict[str, Wire]
    kafka: dict[str, Wire]
    influxdb: Wire
    disks: dict[str, Path] = field(default_factory=dict)
    """The folder at which each small disk is mounted, by server."""
    clocks: dict[str, Path] = field(default_factory=dict)
    """The file that sets the clock of a service, by service."""

    def up(self) -> None:
        """Start the servers that are not running."""
        self.stack.up()
        for wire in self.mqtt.values():
            wire.target = self.stack.mqtt.port
        self.influxdb.target = self.stack.influxdb.port

    def wires_of(self, service: str) -> list[Wire]:
        """Return all wires of a service."""
        found = [wires[service] for wires in (self.mqtt, self.kafka) if service in wires]
        return [*found, self.influxdb] if service == "db_connector" else found


@contextmanager
def chaos_stack(
    say: Callable[[str], None] = print,
    *,
    small_disks: Sequence[str] = (),
    wrong_clocks: Sequence[str] = (),
    kafka: Mapping[str, str] = MappingProxyType({}),
    applications: Sequence[JoinerApplication] = APPLICATIONS,
) -> Iterator[ChaosStack]:
    """Run the servers on free ports in a temporary folder. Everything is removed at the end.

    ``small_disks``: servers whose disk can be filled (see `limits`). ``wrong_clocks``: services whose clock can be set.
    ``kafka``: further settings of the Kafka broker. ``applications``: those whose processes get wires.
    """
    wires = Wires()
    processes = dict.fromkeys(name for application in applications for name in application.processes)
    with ephemeral_stack(say=say) as stack:
        made = ChaosStack(
            stack,
            wires,
            {service: wires.add() for service in ("simulator", "connector")},
            {service: wires.add() for service in ("connector", *processes, "db_connector")},
            wires.add(),
        )
        stack.kafka.more = {**_KAFKA, **kafka, **listeners(made.kafka)}
        for name in small_disks:
            made.disks[name] = mount_disk({"kafka": stack.kafka, "influxdb": stack.influxdb}[name].data)
        for name in wrong_clocks:
            made.clocks[name] = stack.folder / f"clock-{name}"
            set_clock(made.clocks[name], 0)
        try:
            made.up()
            yield made
        finally:
            stack.down()
            wires.close()
            for disk in made.disks.values():
                unmount_disk(disk)


@dataclass
class ChaosPipeline:
    """A run on the servers of a `ChaosStack`, with its own topics, measurement and services."""

    servers: ChaosStack
    folder: Path
    events: Path
    rate: int
    standbys: int = 1
    """How many standbys each unit has."""
    restarts_as_forks: bool = False
    """Whether services that are started again are forks (see `start_forked`): the imports of a start take most of its
    CPU time. Not for measurements of how long a restart takes."""
    starts_as_forks: bool = False
    """Whether all services are forks. Then nothing tests that a new interpreter can start them."""
    applications: tuple[JoinerApplication, ...] = APPLICATIONS
    ports: dict[str, int] = field(default_factory=dict)
    """The port of the metrics of each process that merges."""
    name: str = field(default_factory=lambda: f"chaos-{uuid.uuid4().hex[:8]}")
    services: dict[str, Service] = field(default_factory=dict)
    configs: dict[str, Path] = field(default_factory=dict)
    """The settings file of each application, by the application's name."""
    sent_before: int = 0
    """The number of lines in the journal when the simulator was last started."""
    skipped: int = 0
    """The number of lines of the events file that the simulator skipped when it was last started."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.configs = {application.name: self._write_settings(application) for application in self.applications}
        self._add("simulator", "simulator")
        self._add("connector", "connector", "--config", str(self.config))
        for application in self.applications:
            config = "--config", str(self.configs[application.name])
            for number, instances in enumerate(application.replicas):
                for name in instances:
                    self._add(name, "joiner", "run", "--replica", str(number), "--instance", name, *config)
            for name in application.mergers:
                self._add(name, "joiner", "merge", "--instance", name, *config)
                self.ports[name] = choose_port(None)
        self._add("db_connector", "db_connector", "--config", str(self.last_config))

    def _add(self, name: str, module: str, *arguments: str) -> None:
        self.services[name] = Service(name, module, arguments, self.folder / f"{name}.log")

    def _write_settings(self, application: JoinerApplication) -> Path:
        """Write the settings file of an application, and return its path."""
        applications = self.applications
        names = {one.name: self.name if at == 0 else f"{self.name}-{one.name}" for at, one in enumerate(applications)}
        path = self.folder / f"{application.name}.toml"
        path.write_text(
            _SETTINGS.format(
                name=names[application.name],
                data=f"{names[application.reads]}.out" if application.reads else f"{self.name}.data",
                operators=application.operators,
                standbys=self.standbys,
                replicas=len(application.replicas),
                merged="true" if application.mergers else "false",
                partitions=PARTITIONS,
                kafka=self.servers.stack.kafka.address,
                influxdb=self.servers.stack.influxdb.url,
            )
        )
        return path

    @property
    def config(self) -> Path:
        """The settings file of the first application, which the connector shares."""
        return self.configs[self.applications[0].name]

    @property
    def last_config(self) -> Path:
        """The settings file of the last application, whose results the database has."""
        return self.configs[self.applications[-1].name]

    @property
    def joiners(self) -> list[str]:
        """The joiners of all applications, with those of their replicas."""
        return [name for application in self.applications for replica in application.replicas for name in replica]

    @property
    def journal(self) -> Path:
        """The journal of the events that the simulator has sent."""
        return self.folder / "published.tsv"

    def environment(self, service: str) -> dict[str, str]:
        """Return the variables that connect a service to its wires. They override the settings file."""
        # The fault handler prints a traceback if the process crashes.
        found = {"LSB_INFLUXDB__TOKEN": ":", "PYTHONFAULTHANDLER": "1"}
        if service in self.servers.clocks:
            found |= clock_variables(self.servers.clocks[service])
        if service in self.servers.mqtt:
            port = str(self.servers.mqtt[service].port)
            found |= {"LSB_MQTT__HOST": "127.0.0.1", "LSB_MQTT__PORT": port}
            found |= {"BROKER_HOST": "127.0.0.1", "BROKER_PORT": port}
        if service in self.servers.kafka:
            found["LSB_KAFKA__BOOTSTRAP_SERVERS"] = f"127.0.0.1:{self.servers.kafka[service].port}"
        if service in self.ports:
            found["LSB_METRICS__LISTEN"] = str(self.ports[service])
        if service == "db_connector":
            found["LSB_INFLUXDB__URL"] = f"http://127.0.0.1:{self.servers.influxdb.port}"
        return found

    def start(self, name: str, point: str = "") -> None:
        """Start a service that is not running. ``point``: where it kills itself, as ``name:n`` (see `dying`)."""
        service = self.services[name]
        assert service.pid is None, f"{name} is already running"
        arguments = [*service.arguments, *(self._replay_rest() if name == "simulator" else ())]
        module = [service.module] if not point else ["tests.chaos.dying", service.module]
        environment = {**os.environ, **self.environment(name)}
        if point:
            environment["LSB_CHAOS_DIE"] = point
        command = [*module, *arguments]
        with service.log.open("ab") as log:
            if self.starts_as_forks or (self.restarts_as_forks and service.process is not None):
                service.process = start_forked(command[0], command[1:], environment, log, log)
                return
            service.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a running service."""
        process = self.services[name].process
        assert process is not None
        process.send_signal(number)

    def kill(self, name: str) -> None:
        """Send SIGKILL to a service and wait until it is gone."""
        process = self.services[name].process
        if process is not None:
            kill(process)

    def starve(self, name: str, more_bytes: int) -> None:
        """Limit a running service to ``more_bytes`` of additional memory."""
        pid = self.services[name].pid
        if pid is not None:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + more_bytes
            resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))

    def sent(self) -> int:
        """Return how many lines of the events file have been sent. Those still in flight may be lost."""
        if not self.journal.exists():
            return 0
        with self.journal.open("rb") as file:
            lines = sum(1 for _ in file)
        return max(0, self.skipped + lines - self.sent_before)

    def close(self) -> None:
        """Kill all services."""
        for name in self.services:
            self.kill(name)

    def _replay_rest(self) -> list[str]:
        """Return arguments for a simulator that continues where the last one stopped, or a little earlier."""
        self.skipped = max(0, self.sent() - IN_FLIGHT_MAX)
        if self.journal.exists():
            # A kill may have truncated the last line; end it, so that the next entry starts a new line.
            text = self.journal.read_bytes()
            if text and not text.endswith(b"\n"):
                self.journal.write_bytes(text + b"\n")
            self.sent_before = self.journal.read_bytes().count(b"\n")
        return [
            f"--events={self.events}",
            "--as-recorded",
            f"--rate={self.rate}",
            f"--topic={self.name}/states",
            f"--journal={self.journal}",
            f"--in-flight={IN_FLIGHT_MAX}",
            f"--skip-first={self.skipped}",
        ]
