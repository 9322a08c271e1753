"""Measures how long units pause while instances are killed, leave, join and are drained under load.

``python -m bench.runners.failover --report docs/evidence/bench_failover`` writes ``.json``, ``.md`` and ``.png``. Two
instances share the units while records arrive at a steady rate. Then a supervisor takes their place, and its two worker
processes are killed. The pause of a unit is the longest time around an event in which no result was appended to its
partition, by the broker's clock. The pause of an event is that of its slowest unit.

All processes share the machine, and one that starts needs a core for a second. The event *a program computes* shows
what that alone does to the units.
"""
