"""Does the memory of what was delivered stay small?"""

from __future__ import annotations

import pickle

from joiner.library.merging.memory import Remembered


def test_memory_is_bounded_although_a_replica_that_writes_no_start_records_any_more_repeats_everything() -> None:
    memory = Remembered(2)
    for at in range(20_000):
        memory.add(1, f"result {at}", at)
        assert memory.find(0, f"result {at}")
        memory.end_transaction(1, {"a": at})
        memory.forget({"a": at}, left=10)
    assert len(memory) == 10
    memory.add(1, "last", 20_000)
    assert memory.find(0, "last")
    assert len(pickle.dumps(memory)) < 100_000
    memory.end_transaction(0, {"a": 20_001})
    memory.forget({"a": 20_001})
    assert len(memory) == 0
