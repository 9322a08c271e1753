"""Measures the engine alone, as an upper limit: joins a workload that is already in memory as columns, in one process.

Everything else a joiner does is left out: reading, writing and looking up keys.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from bench.contest.workload.expected import Expected, compare
from bench.harness.pipeline import PARTITIONS
from bench.kafka import BATCH
from joiner import LocalStreamBuffer

NAME: Final = "engine in memory"


def run(expected: Expected) -> dict[str, Any]:
    """Join the workload with one buffer per partition, in batches as large as the joiner's."""
    workload = expected.workload
    time_ns, partition = workload.time_ms * 1_000_000, workload.partition
    steps = []
    for first in range(0, len(workload), BATCH):
        rows = np.arange(first, min(first + BATCH, len(workload)))
        for number in range(PARTITIONS):
            of_unit = rows[partition[rows] == number]
            left, right = (of_unit[workload.side[of_unit] == side] for side in (0, 1))
            steps.append((number, [(workload.thing[side], time_ns[side], side) for side in (left, right)]))
    lateness_ns = workload.lateness_ms * 1_000_000
    buffers = [
        LocalStreamBuffer(lateness_ns=lateness_ns, watermark_scope=workload.watermark_scope) for _ in range(PARTITIONS)
    ]
    began_s = time.perf_counter()
    found = [buffers[number].push(left=left, right=right) for number, (left, right) in steps]
    took_s = time.perf_counter() - began_s
    left, right = (np.concatenate([getattr(step, name) for step in found]) for name in _COLUMNS)
    comparison = compare(expected, left, right)
    return (
        expected.facts
        | asdict(comparison)
        | {
            "records_per_s": len(workload) / took_s,
            "results_per_s": comparison.results / took_s,
            "cpu_s_per_million": took_s / len(workload) * 1e6,
            "complete": comparison.complete,
            "is_through": True,
        }
    )


_COLUMNS: Final = ("left_seq", "right_seq")
