"""Where does the next snapshot go, and what is said of offsets? (Transactions themselves: tests/integration.)"""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaException

from joiner.run.progress import FORMAT_VERSION, Manifest, encode, manifest_key
from joiner.run.state_log import StateLog
from joiner.run.transaction import SnapshotPlace, offsets_as_text, within


def state(serials: dict[int, int], chunks: dict[int, int]) -> StateLog:
    """Slots with manifests of these serials, and with so many chunks."""
    manifests = {
        manifest_key(2, slot): encode(Manifest(FORMAT_VERSION, serial, slot, 1, 1, "", {}, ""))
        for slot, serial in serials.items()
    }
    return StateLog(2, manifests | {f"2/{slot}/{n}": b"x" for slot, count in chunks.items() for n in range(count)})


@pytest.mark.parametrize(
    ("serials", "chunks", "place"),
    [
        ({}, {}, SnapshotPlace(-1, [0, 0])),
        ({0: 0}, {0: 3}, SnapshotPlace(0, [3, 0])),
        ({0: 4, 1: 5}, {0: 1, 1: 2}, SnapshotPlace(5, [1, 2])),
        ({0: 6, 1: 5}, {0: 12, 1: 0}, SnapshotPlace(6, [12, 0])),
    ],
)
def test_the_next_snapshot_follows_what_is_there(
    serials: dict[int, int], chunks: dict[int, int], place: SnapshotPlace
) -> None:
    assert SnapshotPlace.after(state(serials, chunks)) == place


def test_a_call_that_does_not_return_is_given_up_and_its_error_is_passed_on() -> None:
    for_ever = threading.Event()
    with pytest.raises(KafkaException, match=r"did not return within 0\.05 s"):
        within(0.05, for_ever.wait)
    for_ever.set()
    with pytest.raises(ValueError, match="what it says"):
        within(5, _refuse, "what it says")


def _refuse(words: str) -> None:
    raise ValueError(words)


def test_offsets_are_told_in_the_order_of_their_topics() -> None:
    assert offsets_as_text({"b": 2, "a": 1}) == "a@1, b@2"
