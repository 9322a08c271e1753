"""Measures how late results are around faults, with and without replicas, and what replicas cost.

``python -m bench.runners.replicas --report docs/evidence/bench_replicas`` writes ``.json``, ``.md`` and ``.png``. The
same load is sent to one process (``alone``), to two of which each is the standby of the other (``standby``), and to two
replicas of one process each, whose results ``joiner merge`` merges (``replicas``). Single processes are killed, stopped
or cut off from Kafka, one after another. The process that merges is not disturbed.

The load is open (`bench.contest.load.sender`): the latency of a result counts from when its later record was due until
the broker appended the result, by the broker's clock. Records that are due while nothing is written count in full. A
result of a replica counts where a reader finds it first: in the merged topic, or in the first replica's topic that has
it. Appending is not committing: readers get a result a few milliseconds later.

Each fault is compared with a quiet period of the same length that follows it, in the same run. The cost is measured in
further runs without faults, at the same rate and at a high one. What was observed is written to a folder before it is
analysed, so that ``--analyse`` can repeat the analysis alone.
"""
