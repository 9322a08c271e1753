"""What the benchmarks share: a temporary Kafka broker, the joiner as a process, reports and plots."""
