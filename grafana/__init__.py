"""Grafana dashboards, which `grafana.generate` writes, Prometheus alert rules, and the settings that load both."""
