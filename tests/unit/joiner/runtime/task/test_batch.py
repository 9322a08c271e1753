"""Messages to write, as columns."""

from __future__ import annotations

import numpy as np
import pytest

from joiner.runtime.task.batch import Batch


def test_batches_are_appended_and_parts_are_taken() -> None:
    both = Batch.of([b"k", b"l"], [b"1", b""]) + Batch.of([b"m"], [b"33"])
    assert both.each() == [(b"k", b"1"), (b"l", b""), (b"m", b"33")]
    assert both.take(np.array([2, 0])).each() == [(b"m", b"33"), (b"k", b"1")]
    without = Batch.of(None, [b"1"]) + Batch.of(None, [b"2"])
    assert without.each() == [(None, b"1"), (None, b"2")]


def test_an_empty_batch_changes_nothing() -> None:
    some, none = Batch.of(None, [b"1"]), Batch.of([], [])
    assert (some + none).each() == (none + some).each() == some.each()
    assert not len(none)


def test_keys_and_values_belong_together() -> None:
    with pytest.raises(ValueError, match="2 keys and 3 values"):
        Batch.of([b"k", b"k"], [b"1", b"2", b"3"])
    with pytest.raises(ValueError, match="with and without keys"):
        Batch.of([b"k"], [b"1"]) + Batch.of(None, [b"2"])
