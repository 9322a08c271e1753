"""Benchmarks of the runners: pauses when units change owner, and throughput by number of instances."""
