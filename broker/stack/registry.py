"""A schema registry, for tests of messages that name their schemas. `LocalStack.up` starts it only if asked to."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import ClassVar, Final

from broker.stack.errors import StackError
from broker.stack.ports import LOOPBACK
from broker.stack.servers import Server

_PROBE_TIMEOUT_S: Final = 2.0
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Registry(Server):
    """Apicurio Registry, which also speaks the protocol of Confluent's schema registry. It keeps its data in a file."""

    name = "registry"
    usual_ports: ClassVar[Mapping[str, int | None]] = {"port": None, "management_port": None}

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
        return self._parts.problem_registry()

    def fetch(self) -> None:
        """See `Server`."""
        self._parts.registry()

    def is_ready(self) -> bool:
        """See `Server`."""
        try:
            with _DIRECT.open(f"{self.url}/subjects", timeout=_PROBE_TIMEOUT_S) as answer:
                answer.read()
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _prepare(self, ports: Mapping[str, int]) -> list[str]:
        java = self._parts.registry_java()
        if java is None:
            raise StackError(self.problem() or "registry: java is missing")
        properties = {
            "quarkus.http.host": LOOPBACK,
            "quarkus.http.port": ports["port"],
            "quarkus.management.host": LOOPBACK,
            "quarkus.management.port": ports["management_port"],
            "apicurio.datasource.url": f"jdbc:h2:file:{self.data / 'registry'}",
        }
        given = [f"-D{name}={value}" for name, value in properties.items()]
        return [java, *self._JAVA_OPTIONS, *given, "-jar", str(self._parts.registry() / "quarkus-run.jar")]
