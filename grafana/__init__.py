"""Grafana dashboards written by `grafana.generate`, Prometheus alert rules, and the files that provision both."""
