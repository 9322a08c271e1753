"""Provides the programs of the local stack. Each is either found on this machine, or downloaded once and kept.

Downloads are kept in one folder (``$LSB_CACHE``, or ``.lsb/parts`` by default). A download is complete or absent: it is
created next to its destination and moved into place atomically. Once everything is downloaded, no network is needed.

- Kafka and HiveMQ (the MQTT broker) are jars. They are downloaded with the Ivy that ships with pyspark, so Maven is not
  needed. Jars from a registry are code that runs on this machine, so they are verified against the hashes in
  templates/.
- The schema registry (Apicurio Registry), for tests and benchmarks, is an archive. It is downloaded and verified
  likewise.
- InfluxDB 1.8 is built with Go, which verifies the checksums of its downloads.

``servers`` starts the programs. This module does not configure any package source: each tool uses its own settings.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from broker.commandline import describe_missing
from broker.stack.child import POLL_S
from broker.stack.errors import CancelledError, StackError

KAFKA_VERSION: Final = "4.3.1"

_KAFKA_DEPENDENCIES: Final = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    # Kafka's release ships this jar, but Kafka does not declare it as a dependency. Without it, Kafka does not log.
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)
HIVEMQ_VERSION: Final = "2025.5"

_HIVEMQ_DEPENDENCIES: Final = (
    ("com.hivemq", "hivemq-community-edition-embedded", HIVEMQ_VERSION),
    # Janino compiles templates/MqttBroker.java at each start, because a Java runtime does not include a compiler.
    ("org.codehaus.janino", "janino", "3.1.12"),
)
_SPARK_KAFKA_DEPENDENCIES: Final = (
    # The newest version of each jar on Maven Central's mirrors; these versions work with the installed Spark. All
    # dependencies are listed explicitly, because the connector itself asks for a token provider of its own version.
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
_ARCHIVE_MODULE: Final = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="local" module="archive"/>
  <dependencies>
    <dependency org="{0}" name="{1}" rev="{2}" transitive="false">
      <artifact name="{1}" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
"""Asks Ivy for an archive, which has a classifier. A command line can name only jars without one."""

INFLUXDB_VERSION: Final = "1.8.10"

_JAVA_MIN: Final = 17
"""Kafka 4 requires Java 17; HiveMQ requires Java 11."""

_COMMAND_DEADLINE_S: Final = 900.0
"""Deadline for a command. Some, such as downloads, take minutes. A command that takes longer is assumed to hang."""

Say = Callable[[str], None]


class Parts:
    """Finds or downloads the stack's programs. The ``problem_*`` methods only check what is missing."""

    def __init__(self, folder: Path, say: Say) -> None:
        self.folder = folder
        self._say = say
        self.cancel = threading.Event()
        """Set this event to cancel every running command, and every server that is starting."""

    def java(self) -> str | None:
        """Return the path of the java command, from ``$JAVA_HOME`` or else from the path, or None if there is none."""
        home = os.environ.get("JAVA_HOME")
        if home and os.access(Path(home) / "bin" / "java", os.X_OK):
            return str(Path(home) / "bin" / "java")
        return shutil.which("java")

    def problem_kafka(self) -> str | None:
        """Return why Kafka cannot start on this machine and how to fix that, or None if it can start."""
        if importlib.util.find_spec("confluent_kafka") is None:
            return describe_missing("confluent_kafka", "spark")
        return self.problem_java(self._kafka_folder)

    def problem_mqtt(self) -> str | None:
        """Return why the MQTT broker cannot start on this machine and how to fix that, or None if it can start."""
        return self.problem_java(self._hivemq_folder)

    def problem_influxdb(self) -> str | None:
        """Return why InfluxDB cannot start on this machine and how to fix that, or None if it can start."""
        named = os.environ.get("LSB_INFLUXD")
        if named and not (Path(named).is_file() and os.access(named, os.X_OK)):
            remedy = f"set it to the path of an influxd {INFLUXDB_VERSION}, or unset it"
            return f"LSB_INFLUXD={named} is not an executable file; {remedy}"
        if named or _find_influxd() is not None:
            return None
        return self._problem_go("influxd", f"set LSB_INFLUXD to the path of an influxd {INFLUXDB_VERSION}")

    def kafka(self) -> Path:
        """Return the folder with Kafka's jars. Download them if they are missing."""
        notice = f"kafka     downloading Apache Kafka {KAFKA_VERSION} (41 MB, under a minute)"
        return self._jars(self._kafka_folder, _KAFKA_DEPENDENCIES, _sums(f"kafka-{KAFKA_VERSION}"), notice)

    def hivemq(self) -> Path:
        """Return the folder with the MQTT broker's jars. Download them if they are missing."""
        notice = f"mqtt      downloading HiveMQ CE {HIVEMQ_VERSION} (104 MB, about a minute)"
        return self._jars(self._hivemq_folder, _HIVEMQ_DEPENDENCIES, _sums(f"hivemq-{HIVEMQ_VERSION}"), notice)

    def spark_kafka(self) -> Path:
        """Return the folder with the jars of Spark's own Kafka connector. Download them if they are missing."""
        notice = "spark     downloading Spark's Kafka connector (10 MB)"
        return self.jars("spark-kafka", _SPARK_KAFKA_DEPENDENCIES, _sums("spark-kafka"), notice)

    def archive(self, part: str, dependency: Sequence[str], notice: str) -> Path:
        """Return the folder with the content of an archive, a ``tar.gz`` with the classifier ``all``.

        It is downloaded if it is missing, and verified against the hash in the template for ``part``.
        """
        place = self.folder / part
        with self.once(place) as draft:
            if draft is not None:
                self._say(notice)
                module = draft / "ivy.xml"
                module.write_text(_ARCHIVE_MODULE.format(*dependency))
                self._retrieve(part, draft, [], ["-ivy", str(module)])
                shutil.rmtree(draft / "ivy", ignore_errors=True)
                check_hashes(draft / "jars", _sums(part))
                _unpack(draft / "jars", draft / "app")
        return place / "app"

    def jars(self, name: str, dependencies: Sequence[Sequence[str]], sums: Path, notice: str) -> Path:
        """Return the folder with exactly the jars listed in ``dependencies``. Download them if they are missing.

        ``name`` identifies the download. Downloaded jars are verified against the hashes in ``sums``. ``notice`` is
        shown before a download.
        """
        return self._jars(self.folder / name, dependencies, sums, notice, "-notransitive")

    def influxd(self) -> Path:
        """Return the path of the InfluxDB server program.

        That is ``$LSB_INFLUXD``, else an influxd 1.8 on the path, else one built with Go.
        """
        named = os.environ.get("LSB_INFLUXD")
        if named:
            return Path(named)
        found = _find_influxd()
        return found or self._build("influxdb", "influxd", _INFLUXDB_MODULE, "one to two minutes")

    @property
    def _kafka_folder(self) -> Path:
        return self.folder / f"kafka-{KAFKA_VERSION}-log4j"

    @property
    def _hivemq_folder(self) -> Path:
        return self.folder / f"hivemq-{HIVEMQ_VERSION}"

    def _built_folder(self, program: str) -> Path:
        return self.folder / _BUILT_FOLDERS[program]

    def problem_java(self, program: Path) -> str | None:
        """Return why a Java program cannot be started or downloaded to a folder, or None if it can."""
        java = self.java()
        remedy = "on Debian and Ubuntu: apt-get install openjdk-17-jre-headless; or set JAVA_HOME"
        if java is None:
            return f"java is missing (Kafka and the MQTT broker need version {_JAVA_MIN} or newer); {remedy}"
        version = _java_version(java)
        if version is not None and version < _JAVA_MIN:
            return f"{java} is Java {version}, but Kafka and the MQTT broker need Java {_JAVA_MIN} or newer; {remedy}"
        if not program.is_dir() and _find_ivy() is None:
            return f"{describe_missing('pyspark', 'spark')}; its Ivy downloads Kafka and the MQTT broker"
        return None

    def _problem_go(self, program: str, other: str) -> str | None:
        if self._built_folder(program).is_dir() or shutil.which("go") is not None:
            return None
        return f"{program} is missing, and so is Go, which could build it; install Go 1.24 or newer, or {other}"

    def _jars(self, place: Path, dependencies: Sequence[Sequence[str]], sums: Path, notice: str, *options: str) -> Path:
        with self.once(place) as draft:
            if draft is not None:
                self._say(notice)
                self._fetch_jars(place.name, draft, dependencies, *options)
                check_hashes(draft / "jars", sums)
        return place / "jars"

    def _fetch_jars(self, part: str, draft: Path, dependencies: Sequence[Sequence[str]], *options: str) -> None:
        """Use Ivy to download the jars of ``dependencies`` to the ``jars`` folder in ``draft``."""
        # Some jars, such as zstd-jni, have the type bundle.
        for dependency in dependencies:
            asked = [*options, "-dependency", *dependency]
            self._retrieve(part, draft, ["-types", "jar", "bundle"], asked)
        shutil.rmtree(draft / "ivy", ignore_errors=True)

    def _retrieve(self, part: str, draft: Path, types: Sequence[str], asked: Sequence[str]) -> None:
        """Use Ivy to download what is ``asked`` for to the ``jars`` folder in ``draft``."""
        ivy, java = _find_ivy(), self.java()
        if ivy is None or java is None:
            raise StackError(f"{part}: {'java is missing' if java is None else describe_missing('pyspark', 'spark')}")
        command = [
            *(java, "-jar", str(ivy), "-cache", str(draft / "ivy"), *asked),
            *("-retrieve", f"{draft / 'jars'}/[artifact]-[revision](-[classifier]).[ext]"),
            *("-confs", "default", *types),
        ]
        self.run(part, command)

    def _build(self, server: str, program: str, module: str, length: str) -> Path:
        place = self._built_folder(program)
        with self.once(place) as draft:
            if draft is not None:
                self._say(f"{server:9} building {place.name} with Go ({length} the first time)")
                self.run(server, ["go", "install", module], _go_environment(self.folder) | {"GOBIN": str(draft)})
        return place / program

    def go_tool(self, program: str, module: str, version: str, package: str = "") -> Path:
        """Return the path of a Go program. If it is missing, build it from exactly the given version of a Go module.

        It is built as a dependency of a temporary module, because ``go install`` refuses modules that contain replace
        directives.
        """
        place = self.folder / f"{program}-{version}"
        with self.once(place) as draft:
            if draft is not None:
                self._say(f"{program}: building {version} with Go (one to two minutes the first time)")
                (draft / "go.mod").write_text("module built\n")
                go, environment = ["go", "-C", str(draft)], _go_environment(self.folder)
                self.run(program, [*go, "get", f"{module}@{version}"], environment)
                self.run(program, [*go, "build", "-o", program, f"{module}/{package}"], environment)
        return place / program

    @contextlib.contextmanager
    def once(self, place: Path) -> Iterator[Path | None]:
        """Yield a draft folder for the caller to fill, then rename it to ``place``.

        If ``place`` already exists, yield None instead. If several processes need the same part at the same time, one
        of them creates it while the others wait.
        """
        if place.is_dir():
            yield None
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f".{place.name}.lock").open("w") as lock:
            self._lock(lock.fileno(), place)
            if place.is_dir():
                yield None
                return
            draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=self.folder))
            try:
                yield draft
                draft.chmod(0o755)
                draft.rename(place)
            finally:
                shutil.rmtree(draft, ignore_errors=True)

    def _lock(self, lock: int, place: Path) -> None:
        is_reported = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not is_reported:
                    self._say(f"{place.name}: another process is downloading or building it; waiting")
                is_reported = True
                if self.cancel.wait(POLL_S):
                    raise CancelledError(f"{place.name}: cancelled while waiting") from None
            else:
                return

    def run(
        self,
        server: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        is_download: bool = True,
    ) -> None:
        """Run a command until it ends. ``is_download``: whether the command may need the network.

        Raises `StackError`, with the end of the command's output, if the command fails or takes too long, and
        `CancelledError` if it is cancelled.
        """
        hint = " Is the network available, and is the tool configured for your registry?" if is_download else ""
        with tempfile.TemporaryFile() as out:
            tool = subprocess.Popen(
                command,
                env=dict(os.environ if environment is None else environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._wait(server, command, tool)
            finally:
                if tool.poll() is None:
                    os.killpg(tool.pid, signal.SIGKILL)
                    tool.wait()
            if tool.returncode != 0:
                out.seek(0)
                output = out.read().decode(errors="replace").strip().splitlines()[-15:]
                raise StackError(
                    f"{server}: {_shown(command)} failed with status {tool.returncode}.{hint} Output:\n    "
                    + "\n    ".join(output)
                )

    def _wait(self, server: str, command: Sequence[str], tool: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + _COMMAND_DEADLINE_S
        while tool.poll() is None:
            if self.cancel.wait(POLL_S):
                raise CancelledError(f"{server}: cancelled while {_shown(command)} was running")
            if time.monotonic() > end:
                raise StackError(f"{server}: {_shown(command)} took more than {_COMMAND_DEADLINE_S:.0f} s")


_INFLUXDB_MODULE: Final = f"github.com/influxdata/influxdb/cmd/influxd@v{INFLUXDB_VERSION}"
_BUILT_FOLDERS: Final = {"influxd": f"influxdb-{INFLUXDB_VERSION}"}


def parts_folder(base: Path) -> Path:
    """Return the folder for downloaded programs: ``$LSB_CACHE`` if it is set, else ``parts`` in ``base``."""
    named = os.environ.get("LSB_CACHE")
    return (Path(named) if named else base / "parts").absolute()


def _shown(command: Sequence[str]) -> str:
    return f"'{' '.join(command[:3])} …'"


def _go_environment(folder: Path) -> dict[str, str]:
    environment = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false"}
    if not environment.get("HOME") and not environment.get("GOPATH"):
        # Without a home folder, Go does not know where to put its downloads and build cache.
        environment["GOPATH"] = str(folder / "go")
        environment["GOCACHE"] = str(folder / "go-build")
    return environment


def _unpack(archives: Path, target: Path) -> None:
    """Extract all archives in a folder, and remove it."""
    for archive in archives.iterdir():
        with tarfile.open(archive) as opened:
            opened.extractall(target, filter="data")
    shutil.rmtree(archives)


def _sums(name: str) -> Path:
    """Return the path of the file with the expected hashes of the download ``name``."""
    return Path(__file__).with_name("templates") / f"{name}.sha256"


def _find_influxd() -> Path | None:
    """Return the influxd on the path if it is version 1.8, else None.

    Older versions lack the v2 write API, and newer ones must be set up before use.
    """
    found = shutil.which("influxd")
    if found is None:
        return None
    answer = subprocess.run([found, "version"], capture_output=True, text=True, check=False, timeout=20)
    return Path(found) if re.search(r"\bv?1\.8\.\d", answer.stdout) else None


def _find_ivy() -> Path | None:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))), None)


def _java_version(java: str) -> int | None:
    """Return the major version of a java command, or None if it is unknown."""
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=20)
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None


def check_hashes(folder: Path, sums: Path) -> None:
    """Verify the hashes of all files in ``folder`` against ``sums``, a file in sha256sum format.

    Raises `StackError` if a file differs, is missing or is not listed.
    """
    expected = {name: digest for digest, name in (line.split() for line in sums.read_text().splitlines())}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    if found != expected:
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise StackError(
            f"the download does not match the hashes in {sums.name}: {', '.join(wrong)}. It has been deleted; "
            "check which files your package registry serves."
        )
