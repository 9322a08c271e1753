"""Shared by the benchmarks: a Kafka with an application, reports and plots."""
