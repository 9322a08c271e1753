"""Shared by the benchmarks: a Kafka broker with an application, reports and plots."""
