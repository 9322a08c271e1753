"""What paths and conditions see of each Protobuf type, and what becomes of messages that are not valid."""

from __future__ import annotations

import math
import struct
import time
from decimal import Decimal
from functools import cache
from typing import Any, Final

import pytest
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

from broker.wire.records import Unreadable
from joiner.mapping.documents import MESSAGE_BYTES_MAX, Instant
from joiner.mapping.formats import document_decoder
from joiner.mapping.framing import RegisteredSchema, SchemaTable, add_header
from joiner.mapping.protobuf.compiling import compile_schema
from joiner.mapping.protobuf.messages import find_reader
from joiner.mapping.protobuf.reading import FIELDS_MAX, decode_message
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import StreamSettings
from tests.property.varints import varint, zigzag

PLANT: Final = """
    syntax = "proto3";
    package plant;
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/duration.proto";
    import "google/protobuf/struct.proto";
    import "google/protobuf/wrappers.proto";
    import "google/protobuf/any.proto";
    import "google/protobuf/empty.proto";
    import "google/protobuf/field_mask.proto";
    import "confluent/meta.proto";
    import "confluent/type/decimal.proto";

    enum State {
      option allow_alias = true;
      OFF = 0;
      ON = 1;
      RUNNING = 1;
    }

    message Reading {
      option (confluent.message_meta) = { doc: "a reading" };
      string machine = 1;
      int64 at = 2;
      double value = 3;
      optional int32 maybe = 4;
      State state = 5;
      repeated int32 numbers = 6;
      map<string, int32> by_name = 7;
      map<bool, State> by_flag = 8;
      Reading inner = 9;
      oneof choice {
        string text = 10;
        Reading other = 11;
      }
      bytes raw = 12;
      float single = 13;
      uint64 large = 14;
      google.protobuf.Timestamp time = 20;
      google.protobuf.Duration took = 21;
      google.protobuf.Struct more = 22;
      google.protobuf.Int64Value wrapped = 23;
      google.protobuf.Any any = 24;
      google.protobuf.Empty nothing = 25;
      google.protobuf.FieldMask mask = 26;
      confluent.type.Decimal price = 27;
      repeated google.protobuf.Timestamp times = 28;
      map<string, google.protobuf.StringValue> words = 29;
      google.protobuf.Value any_json = 30;
    }
"""


@cache
def compiled(text: str, references: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> RegisteredSchema:
    """Return a schema that has been compiled."""
    return compile_schema(RegisteredSchema("PROTOBUF", text, references, names))


def field(number: int, data: bytes) -> bytes:
    """Return a field that consists of bytes with a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(place: int, value: int) -> bytes:
    """Return a field that is an integer."""
    return varint(place << 3) + varint(value)


def decoded(data: bytes, text: str = PLANT, indexes: tuple[int, ...] = (0,)) -> Any:
    found = compiled(text)
    assert found.mistake == ""
    return decode_message(find_reader(found.descriptors, indexes), data)


def record_of(data: bytes, **stream: Any) -> tuple[str, int, float, str]:
    """Return the thing, the time in ns, the value and the id of the record that a stream has in a message."""
    table = SchemaTable({1: compiled(PLANT)})
    usual = {"name": "s", "topic": "t", "format": "protobuf", "key": "'a'", "time": "kafka.timestamp"}
    topic = MappedTopic([StreamSettings.model_validate(usual | {"value": "$.value"} | stream)], "ms", table)
    ((record, ts_ns),) = topic.read(add_header(1, b"\0" + data), 5, 7)
    return record.thing, ts_ns, record.result, record.id


VALUE: Final = b"\x19" + struct.pack("<d", 3.0)


def test_a_timestamp_is_exact() -> None:
    for seconds, nanos in ((1_700_000_000, 1), (0, 0), (-1, 999_999_999)):
        stamp = timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos).SerializeToString()
        wanted = seconds * 10**9 + nanos
        assert record_of(VALUE + field(20, stamp), time="$.time", time_unit="s") == ("a", wanted, 3.0, "5")


def test_a_plain_integer_is_in_the_unit_of_the_stream() -> None:
    assert record_of(VALUE + number(2, 17), time="$.at", time_unit="s")[1] == 17 * 10**9
    assert record_of(VALUE + number(2, 17), time="$.at")[1] == 17 * 10**6


def test_what_is_absent_has_its_default_or_is_missing() -> None:
    assert decoded(b"") == {
        "machine": "",
        "at": 0,
        "value": Decimal("0.0"),
        "state": "OFF",
        "numbers": [],
        "by_name": {},
        "by_flag": {},
        "raw": b"",
        "single": Decimal("0.0"),
        "large": 0,
        "times": [],
        "words": {},
    }
    assert decoded(number(4, 0))["maybe"] == 0


def test_fields_of_proto2_that_are_absent_are_missing() -> None:
    text = """
        syntax = "proto2";
        message M {
          required int32 a = 1;
          optional string b = 2 [default = "x"];
          repeated int32 c = 3 [packed = true];
          optional group Part = 4 { optional int32 d = 5; }
          enum E { ZERO = 0; ONE = 1; }
          optional E e = 6;
          extensions 100 to 199;
        }
        extend M { optional int32 more = 100; }
    """
    assert decoded(b"", text) == {"c": []}
    data = (
        varint(4 << 3 | 3) + number(5, 7) + varint(4 << 3 | 4) + number(100, 1) + number(3, 8) + field(3, b"\x09\x0a")
    )
    # A closed enum has no other values than its own, and extensions are no members.
    assert decoded(data + number(6, 1) + number(6, 2), text) == {"part": {"d": 7}, "c": [8, 9, 10], "e": "ONE"}
    assert decoded(number(6, 2), text) == {"c": []}


def test_editions_say_which_fields_have_presence() -> None:
    text = """
        edition = "2023";
        message M {
          int32 a = 1;
          int32 b = 2 [features.field_presence = IMPLICIT];
          M c = 3 [features.message_encoding = DELIMITED];
        }
    """
    assert decoded(b"", text) == {"b": 0}
    assert decoded(varint(3 << 3 | 3) + number(1, 5) + varint(3 << 3 | 4), text) == {"b": 0, "c": {"a": 5, "b": 0}}


def test_unknown_fields_are_skipped() -> None:
    unknown = [
        number(300, 7),
        field(300, b"ab"),
        varint(300 << 3 | 1) + bytes(8),
        varint(300 << 3 | 5) + bytes(4),
        varint(300 << 3 | 3) + field(1, b"ab") + varint(300 << 3 | 4),
    ]
    for one in unknown:
        assert decoded(one + number(2, 5))["at"] == 5


def test_enums_of_proto2_can_be_repeated() -> None:
    text = """
        syntax = "proto2";
        enum State { OFF = 0; ON = 1; }
        message M { repeated State states = 1; }
    """
    # The number 7 has no name, and the enum is closed.
    assert decoded(number(1, 1) + number(1, 7) + number(1, 0), text) == {"states": ["ON", "OFF"]}


def test_enums_are_names_unless_there_is_none() -> None:
    found = [decoded(number(5, value))["state"] for value in (0, 1, 7, 2**64 - 3)]
    # Of two names for a number, the first.
    assert found == ["OFF", "ON", 7, -3]


def test_integers_are_exact() -> None:
    found = decoded(number(14, 2**64 - 1) + number(2, 2**64 - 1))
    assert (found["large"], found["at"]) == (2**64 - 1, -1)


def test_the_value_of_a_float_is_the_double_that_equals_it() -> None:
    data = varint(13 << 3 | 5) + struct.pack("<f", 0.1)
    assert record_of(data, value="$.single")[2] == struct.unpack("<f", struct.pack("<f", 0.1))[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_rejected(value: float) -> None:
    with pytest.raises(Unreadable, match=r"value at \$\.value: (nan|inf|-inf) is not a finite number"):
        record_of(b"\x19" + struct.pack("<d", value))


def test_the_last_scalar_counts_and_messages_are_merged() -> None:
    inner = [field(9, number(2, 1) + field(1, b"x") + number(6, 1)), field(9, number(2, 2) + number(6, 2))]
    found = decoded(field(1, b"a") + b"".join(inner) + field(1, b"b"))
    assert (found["machine"], found["inner"]["at"], found["inner"]["machine"]) == ("b", 2, "x")
    assert found["inner"]["numbers"] == [1, 2]
    # Also if they are values of their own.
    first, second = (timestamp_pb2.Timestamp(**parts).SerializeToString() for parts in ({"seconds": 3}, {"nanos": 5}))
    assert decoded(field(20, first) + field(20, second))["time"] == 3 * 10**9 + 5


def test_of_a_oneof_the_last_member_counts() -> None:
    text, other = field(10, b"x"), field(11, number(2, 1))
    assert decoded(text + other).get("text") is None
    found = decoded(text + other + text + field(11, field(1, b"y")))
    assert "text" not in found
    # The former message is gone, so that nothing is merged with it.
    assert (found["other"]["at"], found["other"]["machine"]) == (0, "y")
    assert "other" not in decoded(other + text)


def test_maps_are_objects() -> None:
    pairs = [field(1, b"k") + number(2, 7), field(1, b"k") + number(2, 8), b"", number(2, 9)]
    assert decoded(b"".join(field(7, pair) for pair in pairs))["by_name"] == {"k": 8, "": 9}
    assert decoded(field(8, number(1, 1) + number(2, 1)) + field(8, b""))["by_flag"] == {"true": "ON", "false": "OFF"}


def test_some_types_are_values() -> None:
    took = duration_pb2.Duration(seconds=-1, nanos=-500_000_001).SerializeToString()
    assert decoded(field(21, took))["took"] == Decimal("-1.500000001")
    assert decoded(field(23, b""))["wrapped"] == 0
    assert decoded(field(23, number(1, 5)))["wrapped"] == 5
    assert decoded(field(25, b""))["nothing"] == {}
    assert decoded(field(26, field(1, b"a.b")))["mask"] == {"paths": ["a.b"]}
    assert decoded(field(24, field(1, b"t/x") + field(2, b"\1")))["any"] == {"type_url": "t/x", "value": b"\1"}
    price = field(1, (-123_456).to_bytes(3, "big", signed=True)) + number(2, 9) + number(3, 2)
    assert decoded(field(27, price))["price"] == Decimal("-1234.56")
    stamps = [timestamp_pb2.Timestamp(seconds=n).SerializeToString() for n in (1, 2)]
    times = decoded(b"".join(field(28, one) for one in stamps))["times"]
    assert times == [10**9, 2 * 10**9]
    assert isinstance(times[1], Instant)
    word = field(1, b"k") + field(2, wrappers_pb2.StringValue(value="w").SerializeToString())
    assert decoded(field(29, word) + field(29, field(1, b"l")))["words"] == {"k": "w", "l": ""}


def test_a_struct_is_the_json_that_it_stands_for() -> None:
    struct_value = struct_pb2.Struct()
    content = {"a": None, "b": [1.5, "x", {"c": True, "d": []}], "e": {"f": {"g": "h"}}, "i": [[1.0], [None]]}
    struct_value.update(content)
    data = struct_value.SerializeToString()
    assert decoded(field(22, data))["more"] == content
    # A value that is set again, and one that has no kind.
    again = field(1, field(1, b"e") + field(2, struct_pb2.Value(string_value="new").SerializeToString()))
    assert decoded(field(22, data + again))["more"] == content | {"e": "new"}
    assert decoded(field(30, b""))["any_json"] is None


def test_a_type_of_the_same_name_in_another_file_is_a_message() -> None:
    text = """
        syntax = "proto3";
        package google.protobuf;
        message M { Timestamp t = 1; }
        message Timestamp { string zone = 1; }
    """
    assert decoded(field(1, field(1, b"UTC")), text) == {"t": {"zone": "UTC"}}


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (field(1, b"ok"), "$.machine == 'ok'"),
        (number(5, 1), "$.state == 'ON'"),
        (number(5, 9), "$.state == 9"),
        (b"", "$.state == 'OFF' && $.at == 0 && !$.maybe && !$.inner && !$.time"),
        (number(4, 0), "$.maybe == 0"),
        (field(6, b"\x07\x08"), "$.numbers[1] == 8 && $.numbers[-2] == 7"),
        (field(7, field(1, b"k") + number(2, 7)), "$.by_name.k == 7"),
        (field(9, field(9, b"")), "$.inner.inner && !$.inner.inner.inner"),
        (field(12, b"x"), "$.raw == $.raw && $.raw != 'x'"),
        (field(20, number(1, 17)), "$.time == 17000000000"),
    ],
)
def test_what_a_condition_sees(data: bytes, condition: str) -> None:
    assert record_of(VALUE + data, where=condition)[2] == 3.0
    with pytest.raises(ValueError, match="not enough values"):
        record_of(VALUE + data, where=f"!({condition})")


NESTED: Final = """
    syntax = "proto3";
    message A { message B { int32 b = 1; } message C { int32 c = 1; } }
    message D {
      message E { int32 e = 1; }
      map<string, int32> before = 1;
      message F { int32 f = 1; }
      message G { int32 g = 1; }
    }
"""


def test_the_indexes_say_which_message_it_is() -> None:
    table = SchemaTable({1: compiled(NESTED)})
    read = document_decoder("protobuf", table)

    def framed(*indexes: int) -> Any:
        listed = zigzag(len(indexes)) + b"".join(map(zigzag, indexes))
        return read(add_header(1, listed + number(1, 7)))

    assert framed(0, 0) == {"b": 7}
    assert framed(0, 1) == {"c": 7}
    assert framed(1, 0) == {"e": 7}
    # With the entries of the map, the third message, and without them, none.
    assert framed(1, 3) == {"g": 7}
    assert framed(0) == read(add_header(1, b"\0" + number(1, 7))) == {}
    for indexes in ((2,), (0, 2), (0, 0, 0), (-1,), (1, 4)):
        with pytest.raises(Unreadable, match=r"the schema 1 has no message with the index \["):
            framed(*indexes)
    # Some clients count the entries of maps, and others do not.
    with pytest.raises(Unreadable, match=r"has different messages with the index \[1, 2\]"):
        framed(1, 2)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value is empty"),
        (b"{}", "does not begin with the byte 0"),
        (b"\0\0\0\0", "it has 4 bytes, too few for the byte 0 and the id of a schema"),
        (b"\0" * (MESSAGE_BYTES_MAX + 1), "more than 1048576"),
        (add_header(1, b""), "it does not say which message of the schema 1 it is: the data end too early"),
        (add_header(1, zigzag(-1)), "which message of the schema 1 it is: the number of indexes is -1"),
        (add_header(1, zigzag(2**40)), "the number of indexes is 1099511627776"),
        (add_header(1, zigzag(1) + zigzag(8)), "the schema 1 has no message with the index [8]"),
        (add_header(1, b"\0\x0a"), "not Protobuf of the schema 1: the data end too early"),
        (add_header(1, b"\0" + field(1, b"ab")[:-1]), "2 bytes should follow byte 2, but there are 1"),
        (add_header(1, b"\0" + field(1, b"\xff")), "a string is not UTF-8"),
        (add_header(1, b"\0\x00\x00"), "the field at byte 0 has no valid number"),
        (add_header(1, b"\0" + varint(9999 << 3 | 7)), "has the wire type 7, which does not exist"),
        (add_header(1, b"\0" + varint(9999 << 3 | 4)), "a group ends before byte 3 that has not begun"),
        (add_header(1, b"\0" + varint(9999 << 3 | 3)), "the data end too early"),
        (add_header(1, b"\0\x10" + b"\xff" * 10), "the number at byte 1 has more than 10 bytes"),
        (add_header(1, b"\0" + field(20, number(2, 10**9))), "a google.protobuf.Timestamp has 1000000000 nanoseconds"),
        (add_header(1, b"\0" + field(21, number(1, 1) + number(2, 2**64 - 1))), "Duration has 1 s and -1 ns"),
        (add_header(1, b"\0" + field(27, number(3, 401))), "a confluent.type.Decimal has 0 bytes and the scale 401"),
        (add_header(2, b""), "the schema registry has no schema with the id 2"),
        (add_header(3, b""), "the schema 3 is not of the type PROTOBUF, but AVRO"),
        (add_header(4, b"\0"), "the schema 4 cannot be used: lsb-schema.proto:1:1: Expected top-level statement"),
        (add_header(5, b"\0"), "the schema 5 cannot be used: it has not been compiled"),
        (add_header(6, b"\0"), "the schema 6 cannot be used: its descriptors are invalid"),
        (add_header(7, b"\0"), "the schema 7 cannot be used: the type has more than 10000 fields"),
    ],
)
def test_what_cannot_be_decoded_says_why(value: bytes, reason: str) -> None:
    fields = "".join(f"int32 f{place} = {place};" for place in range(1, FIELDS_MAX + 2))
    table = SchemaTable(
        {
            1: compiled(PLANT),
            3: RegisteredSchema("AVRO", '"string"'),
            4: compiled("nonsense;"),
            5: RegisteredSchema("PROTOBUF", ""),
            6: RegisteredSchema("PROTOBUF", "", descriptors=b"\xff"),
            7: compiled(f'syntax = "proto2"; message M {{ {fields.replace("int32", "optional int32")} }}'),
        }
    )
    with pytest.raises(Unreadable) as refused:
        document_decoder("protobuf", table)(value)
    assert reason in str(refused.value)


def test_a_schema_that_is_too_large_is_found_out_once() -> None:
    enum = "".join(f"V{place} = {place};" for place in range(FIELDS_MAX + 1))
    found = compiled(f'syntax = "proto3"; enum E {{ {enum} }} message M {{ E e = 1; }}')
    begun_s = time.monotonic()
    for _ in range(2_000):
        with pytest.raises(ValueError, match="more than 10000 fields and enum values"):
            find_reader(found.descriptors, (0,))
    assert time.monotonic() - begun_s < 5


def test_changing_members_of_a_large_oneof_takes_little_time() -> None:
    members = "".join(f"int32 m{place} = {place};" for place in range(1, 2_001))
    text = f'syntax = "proto3"; message M {{ oneof o {{ {members} }} }}'
    begun_s = time.monotonic()
    found = decoded((number(1, 1) + number(2, 1)) * 100_000, text)
    assert time.monotonic() - begun_s < 5
    assert found == {"m2": 1}
