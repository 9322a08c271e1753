"""Generates streams that follow the rules of the Nexmark generator, for a query that is not one of Nexmark's.

The rules and their constants come from the generator's default configuration (https://github.com/nexmark/nexmark,
`nexmark-flink/src/main/java/com/github/nexmark/flink/generator`), reimplemented here from their description:

- Of 50 consecutive events, the first is a person, the next 3 are auctions, and the other 46 are bids.
- With probability 1/2, a bid is on the hot auction, which is the first of the current hundred. Otherwise it is on a
  random auction among the last hundred and the next ten, which have not been sent yet.
- With probability 3/4, an auction is by the hot seller, who is the first of the current hundred persons. Otherwise it
  is by a random person among the last thousand and the next ten.

The streams differ from Nexmark's in three ways. The kind of event that the query does not join is left out. There is
one event per millisecond, so that no two have the same time; Nexmark's default is ten per millisecond. Finally, the
records have the form and size of this benchmark's records. Nexmark's queries join or aggregate in their own ways: Q20
joins each bid with its auction and keeps one category, Q4 uses only the bids made while the auction was open, and Q8
joins persons and auctions in windows of ten seconds. The join measured here is the neighbour join of the same two
streams on the same key, so no figure may be compared with a published Nexmark result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

PERSONS: Final = 1
AUCTIONS: Final = 3
BIDS: Final = 46
EPOCH: Final = PERSONS + AUCTIONS + BIDS
HOT: Final = 100
"""One id in this many is hot."""
HOT_AUCTION_RATIO: Final = 2
HOT_SELLER_RATIO: Final = 4
"""The hot auction or seller is chosen in all but one in this many cases."""
IN_FLIGHT: Final = 100
ACTIVE: Final = 1_000
LEAD: Final = 10
"""How many of the ids that have not been sent yet may be chosen."""

Streams = Callable[[int, np.random.Generator], "tuple[Ints, Ints, Ints, str]"]
"""A function that takes a number of rows and a random number generator, and returns the id, the side and the time in ms
of each row, and a description of the streams."""


def auctions_and_bids(records: int, draw: np.random.Generator) -> tuple[Ints, Ints, Ints, str]:
    """Return auctions (left) and bids (right), identified by the auction's number."""
    event = _events(records, AUCTIONS + BIDS, PERSONS)
    newest = last_auction(event)
    is_bid = event % EPOCH >= PERSONS + AUCTIONS
    first = np.maximum(newest - IN_FLIGHT, 0)
    cold = first + draw.integers(0, newest - first + 1 + LEAD)
    is_hot = draw.integers(0, HOT_AUCTION_RATIO, records) > 0
    thing = np.where(is_bid, np.where(is_hot, newest // HOT * HOT, cold), newest)
    about = "auctions and bids as in Nexmark's generator, joined on the auction as in Q20 and Q4; an event every ms"
    return thing, is_bid.astype(np.int64), event, about


def persons_and_auctions(records: int, draw: np.random.Generator) -> tuple[Ints, Ints, Ints, str]:
    """Return persons (left) and auctions (right), identified by the number of the person or seller."""
    event = _events(records, PERSONS + AUCTIONS, 0)
    newest = last_person(event)
    is_auction = event % EPOCH >= PERSONS
    active = np.minimum(newest + 1, ACTIVE)
    cold = newest + 1 - active + draw.integers(0, active + LEAD)
    is_hot = draw.integers(0, HOT_SELLER_RATIO, records) > 0
    thing = np.where(is_auction, np.where(is_hot, newest // HOT * HOT, cold), newest)
    about = "persons and auctions as in Nexmark's generator, joined on the seller as in Q8; an event every ms"
    return thing, is_auction.astype(np.int64), event, about


def last_auction(event: Ints) -> Ints:
    """Return, for each event, the number (from 0) of the newest auction up to and including that event."""
    epoch, offset = event // EPOCH, event % EPOCH
    # A person comes before the auctions of its epoch.
    return epoch * AUCTIONS + np.clip(offset - PERSONS, -1, AUCTIONS - 1)


def last_person(event: Ints) -> Ints:
    """Return, for each event, the number (from 0) of the newest person up to and including that event."""
    return event // EPOCH * PERSONS + np.minimum(event % EPOCH, PERSONS - 1)


def _events(records: int, per_epoch: int, skipped: int) -> Ints:
    """Return the numbers of the events to keep: in each epoch, the first ``per_epoch`` after ``skipped`` others."""
    row = np.arange(records)
    return row // per_epoch * EPOCH + skipped + row % per_epoch
