"""Which MQTT messages may be acknowledged: those of which Kafka has every record, in the order they came.

Pure bookkeeping. MQTT wants acknowledgements in the order of arrival (MQTT 5, 4.6); Kafka confirms in any
order, since the records of one message go to several partitions. A message thus waits for all of its own
records and for all messages before it.

The ledger also bounds what is under way: it is full when too many messages or bytes are unconfirmed, and the
service then takes nothing more.
"""

from __future__ import annotations

from collections import deque
from typing import Final

NO_PACKET: Final = 0
"""The packet id of a message that cannot be acknowledged: sent at QoS 0, or come by a connection now lost."""


class Ticket:
    """A message that was taken: its packet id, the bytes that its records take in memory, and how many of them Kafka
    still owes.
    """

    __slots__ = ("packet_id", "records_owed", "size_bytes")

    def __init__(self, packet_id: int, size_bytes: int, records_owed: int) -> None:
        self.packet_id = packet_id
        self.size_bytes = size_bytes
        self.records_owed = records_owed


class Ledger:
    """The messages that are taken and not yet acknowledged, oldest first."""

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._tickets: deque[Ticket] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def size_bytes(self) -> int:
        """Of the records of all these messages."""
        return self._bytes

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be taken before Kafka confirms some of this."""
        return len(self._tickets) >= self._messages_max or self._bytes >= self._bytes_max

    def take(self, packet_id: int, size_bytes: int, records: int) -> Ticket:
        """Enter a message that goes to Kafka as ``records`` > 0 records of ``size_bytes``."""
        if records < 1:
            message = "a message that owes no record would never be confirmed"
            raise ValueError(message)
        ticket = Ticket(packet_id, size_bytes, records)
        self._tickets.append(ticket)
        self._bytes += size_bytes
        return ticket

    def confirm(self, ticket: Ticket) -> None:
        """Kafka has one more record of the message. Raises ValueError where it owed none."""
        if ticket.records_owed < 1:
            message = f"packet {ticket.packet_id} was confirmed more often than it has records"
            raise ValueError(message)
        ticket.records_owed -= 1

    def release(self) -> list[int]:
        """Remove what is confirmed up to the first that is not; the packet ids to acknowledge, in order."""
        tickets = self._tickets
        packet_ids = []
        while tickets and not tickets[0].records_owed:
            ticket = tickets.popleft()
            self._bytes -= ticket.size_bytes
            if ticket.packet_id != NO_PACKET:
                packet_ids.append(ticket.packet_id)
        return packet_ids

    def detach(self) -> None:
        """The connection is lost: packet ids mean nothing any more, the broker will send these messages
        again.
        """
        for ticket in self._tickets:
            ticket.packet_id = NO_PACKET
