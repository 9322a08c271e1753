"""Code shared by the benchmarks: a temporary Kafka broker, the joiner as a process, reports and plots."""
