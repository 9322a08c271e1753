"""Shared by the benchmarks: a temporary Kafka broker, the joiner, reports and plots."""
