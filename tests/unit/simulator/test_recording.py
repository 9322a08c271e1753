"""Reading a recording in either order, and shifting its times."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from broker.times import TIME_MAX_NS, TIME_MIN_NS, parse_time
from simulator.generate import Plan, generate
from simulator.recording import (
    InvalidLineError,
    Recording,
    Selection,
    SortedRecording,
    StreamedRecording,
    Survey,
    read_head,
    replay_messages,
    rewrite,
)

MS = 1_000_000

SAMPLE = Path(__file__).parents[3].parent / "shared" / "data" / "events.json"


def line(timestamp_ms: object, event_id: str = "a", **more: object) -> bytes:
    return json.dumps({"Thing": "R1", "Timestamp": timestamp_ms, **more, "id": event_id}).encode()


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return tmp_path / "events.json"


def save(path: Path, *lines: bytes) -> None:
    path.write_bytes(b"".join(each + b"\n" for each in lines))


def sent(recording: Recording, **options: Any) -> list[bytes]:
    given = {"rounds": 1, "shift_ns": 0, "round_ns": 0} | options
    return [message.payload for message in replay_messages(recording, **given)]


def test_the_recorded_order_is_the_order_of_the_file(events: Path) -> None:
    lines = [line(30), line(10), line(20)]
    save(events, *lines)
    assert sent(StreamedRecording(events, Selection())) == lines


def test_event_time_order_keeps_the_order_of_equal_times(events: Path) -> None:
    save(events, line(30, "a"), line(10, "b"), line(30, "c"), line(10, "d"))
    ordered = [json.loads(each)["id"] for each in sent(SortedRecording(events, Selection()))]
    assert ordered == ["b", "d", "a", "c"]


def test_an_invalid_line_stays_behind_the_line_before_it(events: Path) -> None:
    save(events, b"first", line(30), b"after 30", b"", line(10), b"after 10")
    expected = [b"first", line(10), b"after 10", line(30), b"after 30", b""]
    assert sent(SortedRecording(events, Selection())) == expected


@pytest.mark.parametrize("kind", [StreamedRecording, SortedRecording])
def test_lines_are_sent_byte_for_byte(events: Path, kind: type[SortedRecording | StreamedRecording]) -> None:
    lines = [
        b'{"Timestamp":1,"x":1.10,"y":1e400,"z":123456789012345678901234567890}',
        b' { "Timestamp" : 2 , "id":"\\u00e9" } ',
        b'{"Timestamp": 3}\r',
        b"\xff\x00",
        b"",
    ]
    save(events, *lines)
    assert sent(kind(events, Selection())) == lines


@pytest.mark.parametrize("kind", [StreamedRecording, SortedRecording])
def test_a_last_line_without_a_newline_is_a_line(events: Path, kind: type[SortedRecording | StreamedRecording]) -> None:
    events.write_bytes(line(1) + b"\n" + line(2))
    assert sent(kind(events, Selection())) == [line(1), line(2)]


@pytest.mark.parametrize("kind", [SortedRecording, StreamedRecording])
def test_a_line_that_no_connector_accepts_is_refused(
    events: Path, kind: type[SortedRecording | StreamedRecording], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.recording.LINE_BYTES_MAX", 100)
    events.write_bytes(b"a" * 99 + b"\n" + b"b" * 100)
    assert kind(events, Selection()).survey().lines == 2
    assert [len(line) for line in kind(events, Selection())] == [99, 100]
    events.write_bytes(b"a" * 99 + b"\n" + b"b" * 101)
    with pytest.raises(OSError, match=r"line 2: it is longer than 100 characters"):
        kind(events, Selection()).survey()


@pytest.mark.parametrize("kind", [StreamedRecording, SortedRecording])
def test_an_empty_file_sends_nothing_even_without_end(
    events: Path, kind: type[SortedRecording | StreamedRecording]
) -> None:
    save(events)
    assert sent(kind(events, Selection()), rounds=None) == []


@pytest.mark.parametrize("kind", [StreamedRecording, SortedRecording])
def test_skip_and_first_count_in_the_order_of_the_file(
    events: Path, kind: type[SortedRecording | StreamedRecording]
) -> None:
    save(events, line(50), line(40), line(30), line(20))
    times = [json.loads(each)["Timestamp"] for each in sent(kind(events, Selection(skip=1, first=2)))]
    assert sorted(times) == [30, 40]
    assert kind(events, Selection(skip=1, first=2)).survey().lines == 2


def test_skipping_more_than_there_is_leaves_nothing(events: Path) -> None:
    save(events, line(1))
    assert sent(SortedRecording(events, Selection(skip=5))) == []


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"no json",
        b"[1]",
        b'{"Timestamp": 1',
        b'{"x": 1}',
        b'{"Timestamp": "1"}',
        b'{"Timestamp": "2019-04-01T05:26:20"}',
        b'{"Timestamp": 1.0000001}',
        b'{"Timestamp": true}',
        b'{"Timestamp": null}',
        b'{"Timestamp": 1, "x": NaN}',
        b'{"Timestamp": 1}{"Timestamp": 2}',
        b'{"Timestamp": 1, "x": ' + b"[" * 100_000,
        f'{{"Timestamp": {TIME_MAX_NS // MS + 1}}}'.encode(),
        f'{{"Timestamp": {TIME_MIN_NS // MS - 1}}}'.encode(),
        b'{"Timestamp": 99999999999999999999999}',
        b'{"Timestamp": 1, "\xff": 1}',
    ],
)
def test_what_has_no_readable_time_is_sent_as_it_is(odd: bytes) -> None:
    message = rewrite(odd, shift_ns=1_000 * MS, round_number=3)
    assert message.invalid
    assert message.payload == odd
    assert message.id == ""


def test_the_survey_counts_lines_invalid_lines_and_the_range_of_times(events: Path) -> None:
    save(events, line(30), b"odd", line(-10), line(20))
    expected = Survey(
        lines=4,
        invalid=1,
        first_ns=-10 * MS,
        last_ns=30 * MS,
        first_invalid=(2, "JSON is malformed: invalid character (byte 0)"),
    )
    assert StreamedRecording(events, Selection()).survey() == expected
    assert SortedRecording(events, Selection()).survey() == expected


@pytest.mark.parametrize(
    "number",
    [b"1.10", b"0.1", b"1e400", b"-0.0", b"123456789012345678901234567890", b"5e-324", b"0.7000000000000001"],
)
def test_rewriting_leaves_every_other_number_untouched(number: bytes) -> None:
    before = b'{"Thing": "R1", "Timestamp": 1000, "v": ' + number + b', "n": {"Timestamp": 7}, "id": "a"}'
    after = rewrite(before, shift_ns=5 * MS, round_number=1).payload
    assert after == before.replace(b"1000", b"1005").replace(b'"a"', b'"a-2"').replace(b": ", b":").replace(
        b", ", b","
    ).replace(b'{"Timestamp":7}', b'{"Timestamp": 7}')


def test_an_event_without_an_id_gets_none(events: Path) -> None:
    message = rewrite(b'{"Timestamp":1}', shift_ns=MS, round_number=1)
    assert message.payload == b'{"Timestamp":2}'
    assert message.id == ""


def test_an_id_that_is_a_number_is_journaled_as_text() -> None:
    assert rewrite(b'{"Timestamp":1,"id":7}', shift_ns=0, round_number=0).id == "7"
    assert rewrite(b'{"Timestamp":1,"id":7}', shift_ns=0, round_number=1).payload.endswith(b'"id":"7-2"}')


def test_rounds_have_new_ids_and_their_times_never_jump_back(events: Path) -> None:
    save(events, line(30, "a"), line(10, "b"), line(20, "c"))
    recording = SortedRecording(events, Selection())
    found = recording.survey()
    objects = [json.loads(each) for each in sent(recording, rounds=4, round_ns=found.round_ns())]
    times = [each["Timestamp"] for each in objects]
    assert times == sorted(times)
    assert len(set(times)) == len(times) == 12
    assert [each["id"] for each in objects[:6]] == ["b", "c", "a", "b-2", "c-2", "a-2"]
    assert len({each["id"] for each in objects}) == 12


def test_rounds_in_recorded_order_do_not_overlap_in_time(events: Path) -> None:
    save(events, line(30, "a"), line(10, "b"), line(20, "c"))
    recording = StreamedRecording(events, Selection())
    payloads = sent(recording, rounds=2, round_ns=recording.survey().round_ns())
    times = [json.loads(each)["Timestamp"] for each in payloads]
    assert max(times[:3]) < min(times[3:])
    assert [each - times[0] for each in times[:3]] == [each - times[3] for each in times[3:]]


def test_a_recording_of_one_time_still_moves_on(events: Path) -> None:
    save(events, line(10), line(10))
    recording = SortedRecording(events, Selection())
    times = [
        json.loads(each)["Timestamp"] for each in sent(recording, rounds=2, round_ns=recording.survey().round_ns())
    ]
    assert times[1] < times[2]


def test_an_endless_replay_continues(events: Path) -> None:
    save(events, line(1), line(2))
    messages = replay_messages(StreamedRecording(events, Selection()), rounds=None, shift_ns=0, round_ns=2 * MS)
    times = [json.loads(each.payload)["Timestamp"] for each in islice(messages, 100)]
    assert times == list(range(1, 101))


def test_both_orders_send_the_same_lines(events: Path) -> None:
    lines = SAMPLE.read_bytes().splitlines() if SAMPLE.is_file() else list(generate(Plan(3_000, disorder=0.2)))
    save(events, *lines)
    in_order = sent(SortedRecording(events, Selection()))
    assert sent(StreamedRecording(events, Selection())) == lines
    assert sorted(in_order) == sorted(lines)
    assert in_order == sorted(lines, key=lambda each: int(json.loads(each)["Timestamp"]))


TIMES = [
    ("2019-04-01T07:27:40.415+02:00", "ms"),
    ("2019-04-01T05:27:40Z", "ms"),
    (1554096460415, "ms"),
    (1554096460415.25, "ms"),
    (1554096460, "s"),
    (1554096460415000001, "ns"),
]


@pytest.mark.parametrize(("time", "unit"), TIMES)
def test_every_form_of_a_time_that_the_pipeline_accepts_is_an_event(events: Path, time: object, unit: str) -> None:
    save(events, line(time))
    recording = SortedRecording(events, Selection(), unit)
    text = json.dumps(time)
    expected = parse_time(text[1:-1] if isinstance(time, str) else text.encode(), unit)
    assert (recording.survey().invalid, recording.survey().first_ns) == (0, expected)
    assert sent(recording) == [line(time)]


def test_times_of_all_forms_are_put_in_order_together(events: Path) -> None:
    lines = [
        line("2019-04-01T07:27:40.416+02:00"),
        line(1554096460415),
        line(1554096460415.5),
        line("2019-04-01T05:27:40Z"),
    ]
    save(events, *lines)
    assert sent(SortedRecording(events, Selection())) == [lines[3], lines[1], lines[2], lines[0]]


@pytest.mark.parametrize(("time", "unit"), TIMES)
def test_a_time_moves_exactly_and_keeps_its_form(time: object, unit: str) -> None:
    moved = rewrite(line(time), shift_ns=3_600 * 1000 * MS, round_number=0, time_unit=unit)
    head = read_head(moved.payload, unit)
    assert head.time_ns == read_head(line(time), unit).time_ns + 3_600 * 1000 * MS
    assert type(json.loads(moved.payload)["Timestamp"]) is type(time)


def test_a_text_that_moves_out_of_range_is_sent_and_refused_later() -> None:
    moved = rewrite(line("2261-12-31T00:00:00Z"), shift_ns=8000 * 366 * 86_400 * 1000 * MS, round_number=0)
    with pytest.raises(InvalidLineError, match="outside the years"):
        read_head(moved.payload)


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (b"", "truncated"),
        (b'{"x": 1}', "Timestamp"),
        (b'{"Timestamp": "2019-04-01T05:26:20"}', "has no offset from UTC"),
        (b'{"Timestamp": null}', "neither a number nor an ISO-8601 string"),
        (b'{"Timestamp": 99999999999999999999}', "outside the years"),
    ],
)
def test_the_reason_why_a_line_is_not_an_event_comes_with_its_number_in_the_selection(
    events: Path, odd: bytes, reason: str
) -> None:
    save(events, line(1), line(2), odd, odd)
    first = SortedRecording(events, Selection(skip=1)).survey().first_invalid
    assert first is not None
    assert first[0] == 2
    assert reason in first[1]


@pytest.mark.parametrize(("unit", "unit_ns"), [("s", 10**9), ("ms", 10**6), ("us", 1000), ("ns", 1)])
def test_whole_numbers_stay_whole_in_every_round(events: Path, unit: str, unit_ns: int) -> None:
    save(events, line(30), line(10), line(21))
    recording = SortedRecording(events, Selection(), unit)
    found = recording.survey()
    assert found.round_ns(unit) == 30 * unit_ns
    times = [
        json.loads(each)["Timestamp"]
        for each in sent(recording, rounds=2, round_ns=found.round_ns(unit), time_unit=unit)
    ]
    assert times == [10, 21, 30, 40, 51, 60]


@pytest.mark.parametrize(
    "odd",
    [
        b'{"Thing":"a","Timestamp":1,"id":"x","q":1,"q":2}',
        b'{"Thing":"a","Timestamp":1,"id":"x","id":"y","q":1}',
        b'{"Thing":"a","Timestamp":1,"Timestamp":2,"id":"x","q":1}',
    ],
)
def test_a_line_with_a_repeated_name_stays_as_it_is_where_times_are_moved(odd: bytes) -> None:
    message = rewrite(odd, shift_ns=MS, round_number=1)
    assert (message.payload, message.invalid) == (odd, True)
