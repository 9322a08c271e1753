"""Parses the arguments that all Java peers share, and starts Java."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

HEAP: Final = ("-Xms2g", "-Xmx4g", "-XX:+UseParallelGC")
"""JVM options for the Java peers. With the defaults, the heap is small, and collecting it keeps two cores busy much of
the time."""


def producer(prefix: str, *, linger_ms: int = 5, batch_bytes: int = 1_000_000) -> dict[str, str]:
    """Return the settings of a producer. By default, they are the same as for the joiner and all other peers.

    ``prefix`` is the prefix under which the engine passes the settings on to the producer. The buffer has room for
    several batches per partition.
    """
    settings = {"compression.type": "lz4", "linger.ms": linger_ms, "batch.size": batch_bytes}
    return {f"{prefix}{name}": str(value) for name, value in (settings | {"buffer.memory": 128 << 20}).items()}


def sinks(prefix: str) -> dict[str, dict[str, str]]:
    """Return the variants of the producer's settings: batches of 256 kB, and of Kafka's own size."""
    return {
        "sink-256k": producer(prefix, linger_ms=20, batch_bytes=256 << 10),
        "sink-default": producer(prefix, linger_ms=5, batch_bytes=16 << 10),
    }


def make_parser(about: str | None, variants: Iterable[str]) -> argparse.ArgumentParser:
    """Return a parser for the arguments that all Java peers share. ``--variant`` accepts the values in ``variants``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("data", help="topic to read")
    parser.add_argument("out", help="topic to write")
    parser.add_argument("--classpath", required=True, help="class path of the program and its jars")
    parser.add_argument("--partitions", type=int, default=4, help="partitions of each topic")
    parser.add_argument("--lateness-ms", type=int, default=0, help="how far records of a thing may be out of order")
    parser.add_argument("--state", type=Path, help="folder for the state")
    parser.add_argument("--variant", choices=sorted(variants), action="append", default=[], help="settings to change")
    return parser


def add_quantities(parser: argparse.ArgumentParser) -> None:
    """Add ``--quantities``, the argument of programs that can also produce aligned rows."""
    what = "of the driver and of the columns, separated by commas: make aligned rows with previous values, not pairs"
    parser.add_argument("--quantities", help=what)


def quantities_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the setting for the Java program."""
    return {"quantities": options.quantities} if options.quantities else {}


def add_schema(parser: argparse.ArgumentParser) -> None:
    """Add ``--schema``, the argument of programs that can also read Avro."""
    what = "Avro schema of the messages, which then begin with a byte 0 and the id of the schema (4 bytes): not JSON"
    parser.add_argument("--schema", help=what)


def schema_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the setting for the Java program."""
    return {"schema": options.schema} if options.schema else {}


def state_of(options: argparse.Namespace) -> Path:
    """Return the absolute path of the folder for state. Create a temporary folder if none was given."""
    return (options.state or Path(tempfile.mkdtemp(prefix="peer-"))).absolute()


def start_java(options: argparse.Namespace, main: str, arguments: Sequence[str], java: Sequence[str] = HEAP) -> None:
    """Replace this process with Java, so that signals sent to this process reach Java."""
    program = shutil.which("java")
    if program is None:
        raise SystemExit("java is missing; on Debian and Ubuntu: apt-get install openjdk-17-jre-headless")
    os.execv(program, [program, *java, "-cp", options.classpath, main, *arguments])  # noqa: S606 - no shell
