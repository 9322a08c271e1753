"""Dashboards, which `grafana.generate` writes, the alerts of Prometheus, and the provisioning of both."""
