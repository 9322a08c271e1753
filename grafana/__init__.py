"""What an operator sees: dashboards, made by `grafana.generate`, Prometheus with its alerts, and how both begin."""
