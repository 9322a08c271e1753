"""Compiles the Java peers when they are first used, and finds the jars that they need at run time.

The compiled classes are stored next to the environments of the other peers. They are recompiled when a source file or a
jar changes. This requires a Java compiler (``javac``).
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from bench.harness.report import java_version
from bench.peers import environments
from broker.stack.errors import StackError
from broker.stack.parts import KAFKA_VERSION, Parts

HERE: Final = Path(__file__).parent

_STREAMS_JARS: Final = (
    ("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    ("org.rocksdb", "rocksdbjni", "10.1.3"),  # the version that kafka-streams names
)
AVRO_LIBRARY: Final = "Apache Avro for Java"
_AVRO_VERSION: Final = "1.12.1"  # the same as in the installed Spark
_AVRO_JARS: Final = (("org.apache.avro", "avro", _AVRO_VERSION),)

Say = Callable[[str], None]


def versions() -> dict[str, str]:
    """Return the versions of Java, and of the library with which the programs read Avro, by name."""
    return {"Java": java_version(), AVRO_LIBRARY: _AVRO_VERSION}


def command(engine: str, folder: Path, say: Say) -> list[str]:
    """Return the arguments for Python that start an engine's script: the script's file and a class path.

    ``engine`` is ``streams``, ``flink`` or ``spark``. Raises `StackError` if a jar or the compiler is missing.
    """
    jars = _JARS[engine](folder, say)
    classes = compile_java(engine, folder / "peers", ":".join(jars), say)
    return [str(HERE / f"{engine}_joins.py"), "--classpath", ":".join([str(classes), *jars])]


def sources(engine: str) -> list[Path]:
    """Return the Java files of an engine's program, including those that all programs share."""
    return [path for name in ("common", engine) for path in sorted((HERE / name).glob("*.java"))]


def compile_java(engine: str, folder: Path, classpath: str, say: Say) -> Path:
    """Compile an engine's program if that has not been done yet. Return the folder with the compiled classes."""
    files = sources(engine)
    digest = hashlib.sha256(classpath.encode())
    for path in files:
        digest.update(path.read_bytes())
    place = folder / f"{engine}-classes-{digest.hexdigest()[:12]}"
    if not place.is_dir():
        if shutil.which("javac") is None:
            raise StackError("javac is missing; on Debian and Ubuntu: apt-get install openjdk-17-jdk-headless")
        folder.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=folder))
        try:
            command = ["javac", "-nowarn", "-cp", classpath, "-d", str(draft), *map(str, files)]
            Parts(folder, say).run(f"{engine} program", command)
            with suppress(OSError):  # another process was faster
                draft.rename(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return place


def _streams(folder: Path, say: Say) -> list[str]:
    parts, sums = Parts(folder, say), environments.REQUIREMENTS / "kafka-streams-jars.sha256"
    notice = f"streams   downloading Kafka Streams {KAFKA_VERSION} with RocksDB (75 MB)"
    own = Parts(folder / "peers", say).jars(f"kafka-streams-{KAFKA_VERSION}", _STREAMS_JARS, sums, notice)
    return [f"{own}/*", *_avro(folder, say), f"{parts.kafka()}/*"]


def _flink(folder: Path, say: Say) -> list[str]:
    python = environments.interpreter("flink", folder, say)
    (flink,) = python.parents[1].glob("lib/python*/site-packages/pyflink/lib")
    connector, jackson = environments.flink_jars(folder, say), _jackson(Parts(folder, say).kafka())
    return [f"{flink}/*", f"{connector}/*", *_avro(folder, say), *jackson]


def _spark(folder: Path, say: Say) -> list[str]:
    return [f"{pyspark_jars()}/*", f"{Parts(folder, say).spark_kafka()}/*"]


def pyspark_jars() -> Path:
    """Return the folder that contains the jars of the installed Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StackError("pyspark is missing; install the extra 'spark'")
    return Path(spec.origin).parent / "jars"


def _avro(folder: Path, say: Say) -> list[str]:
    """Return the jar of Apache Avro. Of what it depends on, reading messages needs only Jackson and SLF4J."""
    sums, notice = environments.REQUIREMENTS / "avro-jars.sha256", f"avro      downloading Avro {_AVRO_VERSION} (1 MB)"
    return [f"{Parts(folder / 'peers', say).jars(f'avro-{_AVRO_VERSION}', _AVRO_JARS, sums, notice)}/*"]


def _jackson(folder: Path) -> list[str]:
    """Return the jars of Jackson, which parses JSON, and with which Avro parses schemas.

    Flink includes a copy, but under other package names.
    """
    return [str(path) for name in ("core", "databind", "annotations") for path in folder.glob(f"jackson-{name}-*.jar")]


_JARS: Final[dict[str, Callable[[Path, Say], list[str]]]] = {"streams": _streams, "flink": _flink, "spark": _spark}
