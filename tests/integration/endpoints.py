"""The HTTP endpoints of a service, for tests that read its metrics."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.services import wait_until


@dataclass
class Endpoints:
    """The HTTP endpoints of a service."""

    port: int

    def ask(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a response. The status is 0 if nothing is listening."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError):
                raise
            return 0, ""

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all its series with these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.ask("/metrics")[1])
            for sample in family.samples
            if sample.name == f"lsb_{name}" and labels.items() <= sample.labels.items()
        )

    def wait_until_ready(self) -> None:
        """Wait until the service is ready."""
        wait_until(lambda: self.ask("/readyz")[0] == 200, "the service is ready")
