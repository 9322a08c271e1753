"""Stands in for Grafana: answers the health check with 200 if all required files are mounted."""

from __future__ import annotations

import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Health(BaseHTTPRequestHandler):
    """Answers every request with 200 if all files that Grafana would read exist and are not empty, else with 503."""

    def do_GET(self) -> None:
        """Answer a GET request for any path."""
        wanted = (
            Path(os.environ["GF_SECURITY_ADMIN_PASSWORD__FILE"]),
            Path("/run/secrets/influxdb_token"),
            Path("/etc/grafana/provisioning/datasources/datasources.yml"),
            Path("/etc/grafana/provisioning/dashboards/dashboards.yml"),
            Path("/var/lib/grafana/dashboards/machine_data.json"),
            Path("/var/lib/grafana/dashboards/join_operation.json"),
        )
        self.send_response(200 if all(path.read_text() for path in wanted) else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


HTTPServer(("0.0.0.0", 3000), Health).serve_forever()  # noqa: S104 - in a container; its port is published on loopback
