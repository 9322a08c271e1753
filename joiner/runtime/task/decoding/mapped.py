"""Decodes messages in other programs' layouts, as each ``[[stream]]`` says, into the same columns as `decoder`.

Every message is read as a whole: it is rejected if one of its records is. Most messages are read as columns
(`joiner.mapping.bulk`); the rest are read one by one
(`joiner.mapping.reading`), with the same result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from broker.wire.bulk import encode_sides, escape
from broker.wire.columns import StringColumn, decimals
from broker.wire.records import Unreadable
from joiner.mapping.bulk.avro import AvroBulkReader
from joiner.mapping.bulk.readers import BulkReader
from joiner.mapping.fields import KafkaColumns, StreamRecords
from joiner.mapping.formats import AVRO, JSON_SCHEMA, PROTOBUF
from joiner.mapping.framing import SchemaTable
from joiner.mapping.reading import MappedRecord, MappedTopic
from joiner.runtime.task.decoding.decoder import TopicDecoder
from joiner.runtime.task.decoding.intake import Intake, Records, records_of
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.payloads import encode_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joiner.mapping.framing import Schemas
    from joiner.mapping.settings import StreamSettings
    from joiner.runtime.settings import JoinerSettings

    Ints = NDArray[np.int64]


class _Part(NamedTuple):
    """n records of one stream, and the rows of their messages in the batch."""

    row: Ints
    records: Records

    def take(self, which: Ints) -> _Part:
        """Return the records at these indices."""
        return _Part(self.row.take(which), self.records.take(which))


class MappedDecoder(TopicDecoder):
    """Decodes the messages of one input topic that has mapped streams."""

    def __init__(
        self, settings: JoinerSettings, topic: str, unit: int, keys: Keys, schemas: Schemas | None = None
    ) -> None:
        """``schemas``: knows the schemas of the messages, if their format needs any."""
        super().__init__(settings, topic, unit, keys)
        streams, known = settings.mapped_streams(topic), schemas or SchemaTable()
        self._unit_of_time = settings.events.time_unit
        self._names = [stream.name for stream in streams]
        self._one_by_one = MappedTopic(streams, settings.events.time_unit, known)
        self._at_once = _bulk_reader(streams, settings.events.time_unit, known)

    def decode(self, messages: Messages) -> Intake:
        """Decode a batch of messages, which are in offset order. Raises the errors of `Schemas.get`."""
        intake = Intake(records=len(messages))
        parts, is_left = self._read_at_once(messages)
        refused = self._read_one_by_one(messages, is_left, parts)
        self._number_things(parts, refused)
        for row in sorted(refused):
            letter = self._dead_letter(_value_of(messages, row), refused[row], int(messages.offset[row]))
            intake.rejected.append(letter)
        is_refused = np.zeros(len(messages), dtype=bool)
        is_refused[[*refused]] = True
        has_record = is_refused.copy()
        for name, some in parts.items():
            kept = [part.take((~is_refused[part.row]).nonzero()[0]) for part in some]
            kept = [part for part in kept if len(part.row)]
            for part in kept:
                has_record[part.row] = True
            if kept:
                self._add(intake, name, kept)
        intake.not_selected = int(np.count_nonzero(~has_record))
        return intake

    def _read_at_once(self, messages: Messages) -> tuple[dict[str, list[_Part]], NDArray[np.bool_]]:
        """Return the records of the messages that can be read as columns, by stream, and which messages are left."""
        found, is_left = self._at_once.read(messages.value, KafkaColumns(messages.append_ms, messages.key))
        latest_ns = messages.append_ms * 1_000_000 + self._max_future_skew_ns
        for some in found:
            for one in some:
                is_left[one.row[one.ts_ns > latest_ns.take(one.row)]] = True
        parts: dict[str, list[_Part]] = {}
        for name, some in zip(self._names, found, strict=True):
            kept = [one.take((~is_left[one.row]).nonzero()[0]) for one in some]
            parts[name] = [_Part(one.row, self._columns(messages, name, one)) for one in kept if len(one.row)]
        return parts, is_left

    def _columns(self, messages: Messages, name: str, found: StreamRecords) -> Records:
        seq = messages.offset.take(found.row)
        named, all_rows = StringColumn.repeated(name.encode(), 1), np.zeros_like(seq)
        quantity = named.take(all_rows)
        identity = decimals(seq) if found.identity is None else found.identity
        times = encode_times(found.ts_ns, self._unit_of_time)
        shown = encode_sides(escape(named).take(all_rows), times, found.result.encoded, escape(identity))
        return Records(seq, found.ts_ns, found.thing, quantity, identity, found.result.value, shown)

    def _read_one_by_one(
        self, messages: Messages, is_left: NDArray[np.bool_], parts: dict[str, list[_Part]]
    ) -> dict[int, str]:
        """Read the messages that are left, and add their records to ``parts``. Return why some are refused, by row."""
        refused: dict[int, str] = {}
        rows: dict[str, list[int]] = {name: [] for name in self._names}
        read: dict[str, list[MappedRecord]] = {name: [] for name in self._names}
        for row in is_left.nonzero()[0].tolist():
            append_ms = int(messages.append_ms[row])
            try:
                key = None if messages.key is None else messages.key[row]
                found = self._one_by_one.read(_value_of(messages, row), int(messages.offset[row]), append_ms, key)
                for one in found:
                    self._check_skew(append_ms, one.ts_ns)
            except Unreadable as reason:
                refused[row] = str(reason)
                continue
            for one in found:
                rows[one.record.quantity].append(row)
                read[one.record.quantity].append(one)
        for name, some in read.items():
            if some:
                row_of = np.array(rows[name], dtype=np.int64)
                ts_ns = np.array([one.ts_ns for one in some], dtype=np.int64)
                columns = records_of(messages.offset.take(row_of), ts_ns, [one.record for one in some])
                parts[name].append(_Part(row_of, columns))
        return refused

    def _number_things(self, parts: dict[str, list[_Part]], refused: dict[int, str]) -> None:
        """Number all new things in the order of their first occurrence, so that batches do not matter.

        Adds the messages with a thing of another partition to ``refused``.
        """
        first_seen: list[tuple[int, int, bytes]] = []
        of_parts: list[tuple[_Part, Ints, list[bytes]]] = []
        for place, some in enumerate(parts.values()):
            for part in some:
                which, first = part.records.thing.distinct()
                things = part.records.thing.take(first).each()
                of_parts.append((part, which, things))
                first_seen += [
                    (row, place, thing) for row, thing in zip(part.row.take(first).tolist(), things, strict=True)
                ]
        foreign: dict[bytes, str] = {}
        for _, _, thing in sorted(first_seen):
            try:
                self._number(thing.decode())
            except Unreadable as reason:
                foreign[thing] = str(reason)
        for part, which, things in of_parts if foreign else ():
            reasons = [foreign.get(thing) for thing in things]
            is_foreign = np.array([reason is not None for reason in reasons]).take(which)
            for at in is_foreign.nonzero()[0].tolist():
                refused.setdefault(int(part.row[at]), str(reasons[int(which[at])]))

    def _add(self, intake: Intake, name: str, parts: list[_Part]) -> None:
        """Add the records of a stream to all sides that select it, in the order of the log."""
        records = parts[0].records
        if len(parts) > 1:
            columns = zip(*(part.records for part in parts), strict=True)
            records = Records._make(
                StringColumn.concat(column) if isinstance(column[0], StringColumn) else np.concatenate(column)
                for column in columns
            )
            records = records.take(records.seq.argsort(kind="stable"))
        keys = self._keys.numbers(records.thing)
        if keys is not None:  # `_number_things` has refused all others
            self._share_out(intake, records, keys, np.zeros_like(keys), [self._by_quantity[name]])


class _BulkReader(Protocol):
    def read(self, values: StringColumn, kafka: KafkaColumns) -> tuple[list[list[StreamRecords]], NDArray[np.bool_]]:
        """See `bulk.readers.BulkReader.read`."""
        ...


def _bulk_reader(streams: Sequence[StreamSettings], time_unit: str, schemas: Schemas) -> _BulkReader:
    if streams[0].format == PROTOBUF:
        from joiner.mapping.bulk.protobuf import ProtobufBulkReader  # noqa: PLC0415 - protobuf is an extra

        return ProtobufBulkReader(streams, time_unit, schemas)
    if streams[0].format == AVRO:
        return AvroBulkReader(streams, time_unit, schemas)
    return BulkReader(streams, time_unit, has_header=streams[0].format == JSON_SCHEMA)


def _value_of(messages: Messages, row: int) -> bytes | None:
    is_null = messages.is_null is not None and bool(messages.is_null[row])
    return None if is_null else messages.value[row]
