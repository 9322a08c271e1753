"""How many messages are read at a time if each may hold many records?"""

from __future__ import annotations

from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.runners.input import _MessageLimit
from joiner.runtime.task.decode import Messages


def read(*sizes: int) -> Read:
    return Read(
        {0: {"data": Messages.of(range(len(sizes)), [0] * len(sizes), [b"x" * size for size in sizes])}}, {}, []
    )


def test_the_limit_follows_the_size_of_the_largest_messages() -> None:
    limit = _MessageLimit(1_000)
    assert limit.messages == 10, "while their size is not known"
    limit.note(read(100, 24_000))
    assert limit.messages == 10
    limit.note(read(240_000))
    assert limit.messages == 1
    for _ in range(100):
        limit.note(read(240))
    assert limit.messages == 1_000, "no more than a batch of single records has"


def test_a_message_is_read_however_large_it_is_and_nothing_read_changes_nothing() -> None:
    limit = _MessageLimit(1)
    limit.note(read(10**6))
    assert limit.messages == 1
    limit.note(Read({}, {}, []))
    assert limit.messages == 1
