"""A message is acknowledged once, after all of its records are confirmed and all earlier messages are acknowledged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.acknowledgement import NO_PACKET, Ledger


def ledger(messages_max: int = 100, bytes_max: int = 1000) -> Ledger:
    return Ledger(messages_max=messages_max, bytes_max=bytes_max)


def test_a_message_waits_for_all_of_its_records() -> None:
    book = ledger()
    ticket = book.add(1, 10, 3)
    book.confirm(ticket)
    book.confirm(ticket)
    assert book.release() == []
    book.confirm(ticket)
    assert book.release() == [1]
    assert book.release() == []


def test_a_message_waits_for_all_messages_before_it() -> None:
    book = ledger()
    first, second, third = (book.add(packet_id, 10, 1) for packet_id in (7, 3, 9))
    book.confirm(third)
    book.confirm(second)
    assert book.release() == []
    book.confirm(first)
    assert book.release() == [7, 3, 9]


def test_a_message_at_qos_0_is_counted_and_not_acknowledged() -> None:
    book = ledger()
    book.confirm(book.add(NO_PACKET, 10, 1))
    before = len(book)
    assert book.release() == []
    assert (before, len(book)) == (1, 0)


def test_after_a_lost_connection_nothing_old_is_acknowledged() -> None:
    book = ledger()
    old = book.add(1, 10, 1)
    book.detach()
    new = book.add(1, 10, 1)
    book.confirm(new)
    assert book.release() == []
    book.confirm(old)
    assert book.release() == [1]


def test_the_ledger_is_full_at_its_number_of_messages_until_they_are_released() -> None:
    book = ledger(messages_max=2)
    first = book.add(1, 1, 1)
    states = [book.is_full]
    book.add(2, 1, 1)
    states.append(book.is_full)
    book.confirm(first)
    states.append(book.is_full)
    book.release()
    states.append(book.is_full)
    assert states == [False, True, True, False]


def test_the_ledger_is_full_at_its_number_of_bytes_until_they_are_released() -> None:
    book = ledger(bytes_max=100)
    ticket = book.add(1, 100, 1)
    states = [book.is_full]
    book.confirm(ticket)
    book.release()
    states.append(book.is_full)
    assert states == [True, False]


def test_a_message_that_owes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="would never be confirmed"):
        ledger().add(1, 10, 0)


def test_one_confirmation_too_many_is_an_error() -> None:
    book = ledger()
    ticket = book.add(1, 10, 1)
    book.confirm(ticket)
    with pytest.raises(ValueError, match="more confirmations than the message has records"):
        book.confirm(ticket)


@given(st.lists(st.integers(1, 4), max_size=30), st.randoms(use_true_random=False))
def test_in_any_order_of_confirmation_each_is_acknowledged_once_in_order_and_not_too_early(
    record_counts: list[int], random: object
) -> None:
    book = ledger()
    tickets = [book.add(packet_id, 1, records) for packet_id, records in enumerate(record_counts, start=1)]
    confirmations = [ticket for ticket in tickets for _ in range(ticket.unconfirmed_records)]
    random.shuffle(confirmations)  # type: ignore[attr-defined] # Hypothesis' Random
    acknowledged: list[int] = []
    for ticket in confirmations:
        book.confirm(ticket)
        released = book.release()
        assert all(not tickets[packet_id - 1].unconfirmed_records for packet_id in released)
        acknowledged += released
    assert acknowledged == list(range(1, len(record_counts) + 1))
    assert len(book) == 0
