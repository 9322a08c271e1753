"""Decides which MQTT messages may be acknowledged: those whose records are all in Kafka, in order of arrival.

This module is pure. Messages must be acknowledged in the order in which they arrived (MQTT 3.1.1, section 4.6), but
Kafka may confirm records in a different order, because they go to several partitions. A message is therefore
acknowledged only once all of its records, and the records of all earlier messages, have been confirmed.

The ledger also limits the messages in flight. It is full when too many messages or bytes are unconfirmed; the service
then stops reading until Kafka catches up.
"""

from __future__ import annotations

from collections import deque
from typing import Final

NO_PACKET: Final = 0
"""The packet id of a message that cannot be acknowledged: it was sent at QoS 0, its connection was lost, or it is a
watermark, which does not come from MQTT."""


class Ticket:
    """An MQTT message in flight: its packet id, the size of its records, and how many Kafka has not confirmed yet."""

    __slots__ = ("packet_id", "size_bytes", "unconfirmed_records")

    def __init__(self, packet_id: int, size_bytes: int, unconfirmed_records: int) -> None:
        self.packet_id = packet_id
        self.size_bytes = size_bytes
        self.unconfirmed_records = unconfirmed_records


Tickets = Ticket | tuple[Ticket, ...]
"""The MQTT messages whose records are in one Kafka message. A JSON message holds a single record, so it has one
ticket; an Arrow message can hold the records of several MQTT messages."""


class Ledger:
    """The messages in flight, that is, received but not yet acknowledged, oldest first."""

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._tickets: deque[Ticket] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def size_bytes(self) -> int:
        """The memory, in bytes, used by the records of all messages in flight."""
        return self._bytes

    @property
    def is_full(self) -> bool:
        """Whether the limit on messages or bytes has been reached. Add no more until Kafka has confirmed some."""
        return len(self._tickets) >= self._messages_max or self._bytes >= self._bytes_max

    def add(self, packet_id: int, size_bytes: int, records: int) -> Ticket:
        """Add a message with ``records`` records (at least one), ``size_bytes`` bytes in total. Return its ticket."""
        if records < 1:
            message = "a message without records would never be confirmed"
            raise ValueError(message)
        ticket = Ticket(packet_id, size_bytes, records)
        self._tickets.append(ticket)
        self._bytes += size_bytes
        return ticket

    def confirm(self, ticket: Ticket) -> None:
        """Note Kafka's confirmation of one more record of a message. Raises ValueError if none was unconfirmed."""
        if ticket.unconfirmed_records < 1:
            message = f"packet {ticket.packet_id}: Kafka sent more confirmations than the message has records"
            raise ValueError(message)
        ticket.unconfirmed_records -= 1

    def release(self) -> list[int]:
        """Remove the messages before the first unconfirmed one; return the packet ids to acknowledge, in order."""
        tickets = self._tickets
        packet_ids = []
        while tickets and not tickets[0].unconfirmed_records:
            ticket = tickets.popleft()
            self._bytes -= ticket.size_bytes
            if ticket.packet_id != NO_PACKET:
                packet_ids.append(ticket.packet_id)
        return packet_ids

    def detach(self) -> None:
        """Invalidate all packet ids after the connection is lost; the broker will redeliver the messages in flight."""
        for ticket in self._tickets:
            ticket.packet_id = NO_PACKET
