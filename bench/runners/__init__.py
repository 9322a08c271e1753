"""Benchmarks of the runners: pauses when units change their owner, and throughput by the number of instances."""
