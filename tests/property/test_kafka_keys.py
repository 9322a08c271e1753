"""Whatever the keys of messages are, columns and single messages give the same records and dead letters."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from broker.partitioner import partition_of
from broker.wire.records import Unreadable
from joiner.mapping.reading import MappedTopic
from joiner.runtime.task.decoding.factory import make_decoder
from joiner.runtime.task.decoding.intake import Intake
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.decoding.messages import Messages
from tests.unit.joiner.runtime.joiner_inputs import make_settings

PARTITIONS = 2
AT_MS = 1_700_000_000_000
KEYS = (
    st.none()
    | st.binary(max_size=3)
    | st.sampled_from(["a", "b", "press 4", "é", "\0", "x" * 256, "x" * 257, "é" * 200]).map(str.encode)
    | st.text(max_size=4).map(lambda text: text.encode(errors="surrogatepass"))
)
SPEED = {"name": "speed", "topic": "t", "key": "kafka.key", "time": "$.ts", "value": "$.rpm", "where": "$.rpm > 1"}
TORQUE = {"name": "torque", "topic": "t", "key": "$.id", "time": "kafka.timestamp", "value": "$.rpm"}


def found_in(intake: Intake, keys: Keys) -> list[tuple[int, int, str]]:
    """Return the place, the offset and the thing of each record."""
    found = []
    for (_, place), side in intake.sides.items():
        rows = side.rows()
        things = [keys.things[number] for number in rows.key.tolist()]
        found += [(place, seq, thing) for seq, thing in zip(rows.seq.tolist(), things, strict=True)]
    return sorted(found)


@given(st.lists(st.tuples(KEYS, st.integers(0, 3), st.booleans()), max_size=150), st.integers(1, 40))
def test_records_of_kafka_s_keys_are_those_of_single_messages(
    drawn: list[tuple[bytes | None, int, bool]], size: int
) -> None:
    settings = make_settings(stream=[SPEED, TORQUE], partitions=PARTITIONS)
    values = [json.dumps({"ts": AT_MS + at, "rpm": rpm, "id": "a"}).encode() for at, (_, rpm, _) in enumerate(drawn)]
    values = [value if is_right else value[1:] for value, (_, _, is_right) in zip(values, drawn, strict=True)]
    keys = [key for key, _, _ in drawn]
    unit = partition_of(b"a", PARTITIONS)
    numbered = Keys(unit, PARTITIONS)
    decoder = make_decoder(settings, "t", unit, numbered)
    records: list[tuple[int, int, str]] = []
    refused: list[tuple[int, str]] = []
    whole = Messages.of(range(len(drawn)), [AT_MS] * len(drawn), values, keys)
    for begin in range(0, len(drawn), size):
        one = decoder.decode(Messages.concat([whole.part(begin, begin + 1), whole.part(begin + 1, begin + size)]))
        records += found_in(one, numbered)
        refused += [(letter.offset, letter.reason) for letter in one.rejected]
    mapping = MappedTopic(settings.mapped_streams("t"), "ms")
    wanted: list[tuple[int, int, str]] = []
    reasons: list[tuple[int, str]] = []
    for offset, (value, key) in enumerate(zip(values, keys, strict=True)):
        try:
            read = mapping.read(value, offset, AT_MS, key)
            for one_read in read:
                thing = one_read.record.thing
                if partition_of(thing.encode(), PARTITIONS) != unit:
                    raise Unreadable("belongs to partition")
        except Unreadable as reason:
            reasons.append((offset, str(reason)))
            continue
        wanted += [
            (("speed", "torque").index(one_read.record.quantity), offset, one_read.record.thing) for one_read in read
        ]
    assert sorted(records) == sorted(wanted)
    assert [offset for offset, _ in refused] == [offset for offset, _ in reasons]
    for (_, found), (_, why) in zip(refused, reasons, strict=True):
        assert why in found or "belongs" in found
