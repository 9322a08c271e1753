"""The dashboards that `grafana.generate` writes, the Prometheus alerts, and the provisioning of both."""
