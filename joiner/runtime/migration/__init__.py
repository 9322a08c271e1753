"""Moving a unit from one site to another while data flows.

May import `task`, `kafka` and `ownership`. `protocol` and `order` are state machines without Kafka or a clock.
Start with `protocol`, then `coordinator`, which drives it, and `handover`, the runner's side.
"""
