"""A schema registry, for tests of messages that name their schemas. `LocalStack.up` starts it only if asked to."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from broker.stack.errors import StackError
from broker.stack.parts import java_version
from broker.stack.ports import LOOPBACK
from broker.stack.servers import Server

REGISTRY_VERSION: Final = "3.3.3"

_PART: Final = f"apicurio-registry-{REGISTRY_VERSION}"
_JAVA_MIN: Final = 21
_JAVA_FOLDERS: Final = Path("/usr/lib/jvm")
"""Where Linux distributions install several versions of Java side by side."""

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
        if self._java() is None:
            return f"the schema registry needs Java {_JAVA_MIN} or newer: install it, or set JAVA_HOME"
        return self._parts.problem_java(self._parts.folder / _PART)

    def fetch(self) -> None:
        """See `Server`."""
        self._program()

    def _program(self) -> Path:
        notice = f"registry  downloading Apicurio Registry {REGISTRY_VERSION} (158 MB, about a minute)"
        return self._parts.archive(_PART, ("io.apicurio", "apicurio-registry-app", REGISTRY_VERSION), notice)

    def _java(self) -> str | None:
        """Return a java command that is new enough, or None."""
        found = [self._parts.java(), *(str(one) for one in sorted(_JAVA_FOLDERS.glob("*/bin/java")))]
        versions = ((java, java_version(java)) for java in dict.fromkeys(found) if java is not None)
        return next((java for java, version in versions if version is not None and version >= _JAVA_MIN), None)

    def is_ready(self) -> bool:
        """See `Server`."""
        try:
            with _DIRECT.open(f"{self.url}/subjects", timeout=_PROBE_TIMEOUT_S) as answer:
                answer.read()
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _prepare(self, ports: Mapping[str, int]) -> list[str]:
        java = self._java()
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
        return [java, *self._JAVA_OPTIONS, *given, "-jar", str(self._program() / "quarkus-run.jar")]
