"""A schema registry, for tests and benchmarks of messages that name their schemas.

`LocalStack.up` starts it only if asked to.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from broker.stack.errors import StackError
from broker.stack.ports import LOOPBACK
from broker.stack.servers import Server

REGISTRY_VERSION: Final = "2.6.13.Final"
"""The newest release that runs with Java 17; 3.0 and later need Java 21."""

_PART: Final = f"apicurio-registry-{REGISTRY_VERSION}"
_PROBE_TIMEOUT_S: Final = 2.0
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Registry(Server):
    """Apicurio Registry, which also speaks the protocol of Confluent's schema registry. It keeps its data in a file."""

    name = "registry"
    usual_ports: ClassVar[Mapping[str, int | None]] = {"port": None}

    _JAVA_OPTIONS: Final = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

    @property
    def url(self) -> str:
        """The URL for clients of Confluent's schema registry."""
        return f"http://{self.address}/apis/ccompat/v7"

    @property
    def settings(self) -> dict[str, str]:
        """See `Server`."""
        return {"LSB_REGISTRY__URL": self.url}

    def problem(self) -> str | None:
        """See `Server`."""
        return self._parts.problem_java(self._parts.folder / _PART)

    def fetch(self) -> None:
        """See `Server`."""
        self._program()

    def _program(self) -> Path:
        notice = f"registry  downloading Apicurio Registry {REGISTRY_VERSION} (142 MB, about a minute)"
        return self._parts.archive(_PART, ("io.apicurio", "apicurio-registry-app", REGISTRY_VERSION), notice)

    def is_ready(self) -> bool:
        """See `Server`."""
        try:
            with _DIRECT.open(f"{self.url}/subjects", timeout=_PROBE_TIMEOUT_S) as answer:
                answer.read()
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _prepare(self, ports: Mapping[str, int]) -> list[str]:
        java = self._parts.java()
        if java is None:
            raise StackError(self.problem() or "registry: java is missing")
        properties = {
            "quarkus.http.host": LOOPBACK,
            "quarkus.http.port": ports["port"],
            "quarkus.datasource.jdbc.url": f"jdbc:h2:file:{self.data / 'registry'}",
        }
        given = [f"-D{name}={value}" for name, value in properties.items()]
        program = self._program() / f"apicurio-registry-app-{REGISTRY_VERSION}-runner.jar"
        return [java, *self._JAVA_OPTIONS, *given, "-jar", str(program)]
