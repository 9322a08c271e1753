"""Messages as columns, both those that were read and those to be written."""

from __future__ import annotations

import numpy as np
import pytest

from joiner.runtime.task.batch import Batch
from joiner.runtime.task.decoding.messages import Messages


def test_batches_are_appended_and_parts_are_taken() -> None:
    both = Batch.concat([Batch.of([b"k", b"l"], [b"1", b""]), Batch.of([b"m"], [b"33"])])
    assert both.each() == [(b"k", b"1"), (b"l", b""), (b"m", b"33")]
    assert both.take(np.array([2, 0])).each() == [(b"m", b"33"), (b"k", b"1")]
    without = Batch.concat([Batch.of(None, [b"1"]), Batch.of(None, [b"2"])])
    assert without.each() == [(None, b"1"), (None, b"2")]


def test_a_message_before_a_batch_has_no_key() -> None:
    assert Batch.of([b"k", b"l"], [b"1", b"2"]).after([b"0"]).each() == [(b"", b"0"), (b"k", b"1"), (b"l", b"2")]
    assert Batch.of(None, [b"1"]).after([b"a", b"b"]).each() == [(None, b"a"), (None, b"b"), (None, b"1")]


def test_an_empty_batch_changes_nothing() -> None:
    some, none = Batch.of(None, [b"1"]), Batch.of([], [])
    assert Batch.concat([some, none]).each() == Batch.concat([none, some]).each() == some.each()
    assert Batch.concat([]).each() == []
    assert not len(none)


def test_keys_and_values_belong_together() -> None:
    with pytest.raises(ValueError, match="2 keys and 3 values"):
        Batch.of([b"k", b"k"], [b"1", b"2", b"3"])
    with pytest.raises(ValueError, match="with and without keys"):
        Batch.concat([Batch.of([b"k"], [b"1"]), Batch.of(None, [b"2"])])


def test_a_part_without_null_values_does_not_know_of_those_in_other_parts() -> None:
    messages = Messages.of(range(4), [0] * 4, [b"1", b"", None, b"4"])
    assert messages.values() == [b"1", b"", None, b"4"]
    assert messages.part(0, 2).is_null is None
    assert messages.part(0, 2).values() == [b"1", b""]
    assert messages.part(2, 4).values() == [None, b"4"]
