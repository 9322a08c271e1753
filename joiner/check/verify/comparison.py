"""Compares a unit's outputs with the expected ones: results, late and unmatched records, and dead letters.

`Outputs` contains the late, unmatched and rejected records of the whole application, which are read once. Comparing a
unit removes the outputs expected from it. Any that remain at the end are unexpected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from broker.wire.records import Rejected, Unreadable, decode_rejected, join_of, pair_id
from broker.wire.start_records import read_start
from joiner.check.verify.pairs import FoundJoined, FoundRecord, altered_fields, altered_record
from joiner.check.verify.rows import RowComparison

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from joiner.check.found.evidence import Evidence, Message
    from joiner.check.found.findings import Findings, Tally
    from joiner.check.verify.judgement import SideJudgement, UnitJudgement
    from joiner.check.verify.pairs import ExpectedPairs
    from joiner.check.verify.rows import ExpectedRows
    from joiner.runtime.model import Checkpoint
    from joiner.runtime.settings import JoinerSettings

RESULTS: Final = "results"
LATE: Final = "late records"
UNMATCHED: Final = "unmatched records"
REJECTED: Final = "rejected records"
FAILED: Final = "failed pairs"
FAILED_ROWS: Final = "failed rows"


class _FoundOutputRecord(FoundRecord, frozen=True, kw_only=True):
    thing: str


class FoundOutput(msgspec.Struct, frozen=True):
    """A late or unmatched record as written to its topic."""

    id: str
    application: str
    join: str
    side: str
    topic: str
    partition: int
    offset: int
    record: _FoundOutputRecord
    row: int | None = None


_Decoded = tuple["Message", str, FoundJoined | None, str]
"""A message, and a result in it: its id, the decoded result, and what is wrong with it; see `_decode_result`."""


class _FoundId(msgspec.Struct):
    id: str
    application: str = ""


_joined = msgspec.json.Decoder(FoundJoined)
_output = msgspec.json.Decoder(FoundOutput)
_ids = msgspec.json.Decoder(_FoundId)


@dataclass
class Outputs:
    """The application's late and unmatched records and dead letters that no compared unit has claimed as expected.

    ``by_kind``: the late and the unmatched records, by kind and id. ``rejected``: the dead letters, by id.
    ``foreign_rejected``: the dead letters written by other services.
    """

    by_kind: dict[str, dict[str, list[Message]]] = field(default_factory=lambda: {LATE: {}, UNMATCHED: {}})
    rejected: dict[str, list[tuple[Message, Rejected]]] = field(default_factory=dict)
    foreign_rejected: list[Rejected] = field(default_factory=list)


Ends = dict[tuple[str, int], int]
"""By topic and partition: the offset at which a unit's output begins. It wrote what precedes that before its reset."""


def ends_before(begun: Mapping[int, Checkpoint], settings: JoinerSettings) -> Ends:
    """Return where the output of each unit begins. ``begun``: checkpoints by unit.

    Without replicas, this is empty: after a reset, consumers get all results again, and the check reports them. Readers
    of replicas do not.
    """
    if settings.application.replicas == 1:
        return {}
    return {(topic, unit): at for unit, one in begun.items() for topic, at in one.result_ends.items()}


def read_outputs(evidence: Evidence, settings: JoinerSettings, findings: Findings, ends: Ends) -> Outputs:
    """Read the application's late and unmatched records and dead letters.

    Count those of other applications and services, and report messages that cannot be decoded. Replicas write content
    that names the application they share. ``ends``: leave out what the application has written before these offsets.
    """
    outputs, application = Outputs(), settings.application.shared_name
    for what, messages in ((LATE, evidence.late()), (UNMATCHED, evidence.unmatched())):
        for message in without_starts(messages, ends):
            try:
                found = _ids.decode(message.value or b"")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                findings.differ("unexpected", what, "", f"{message.place}: not a valid record: {error}")
                continue
            if found.application == application:
                outputs.by_kind[what].setdefault(found.id, []).append(message)
            else:
                findings.count(f"{what} of other applications")
    # Dead letters of other services count wherever they are.
    for message in without_starts(evidence.rejected(), {}):
        try:
            dead_letter = decode_rejected(message.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            findings.differ("unexpected", REJECTED, "", f"{message.place}: not a dead letter: {error}")
            continue
        if dead_letter.source == application and _precedes(message, ends):
            continue
        if dead_letter.source == application:
            outputs.rejected.setdefault(dead_letter.id, []).append((message, dead_letter))
        else:
            findings.count("dead letters of other services")
            outputs.foreign_rejected.append(dead_letter)
    return outputs


def without_starts(messages: Iterable[Message], ends: Ends) -> Iterator[Message]:
    """Yield the messages in an output topic from ``ends`` on that are not start records."""
    return (message for message in messages if not _precedes(message, ends) and read_start(message.value) is None)


def _precedes(message: Message, ends: Ends) -> bool:
    return message.offset < ends.get((message.topic, message.partition), 0)


def compare_results(
    wanted: dict[str, ExpectedPairs],
    wanted_rows: dict[str, ExpectedRows],
    messages: Iterable[Message],
    judgement: UnitJudgement,
    time_unit: str,
    findings: Findings,
) -> None:
    """Compare the results in the unit's partition with ``wanted`` (by join) and ``wanted_rows`` (by align)."""
    places = {name: _places(want, judgement) for name, want in wanted.items()}
    seen: dict[str, dict[int, str]] = {name: {} for name in wanted}
    decoded: list[_Decoded] = []
    for message in messages:
        decoded.extend((message, *one) for one in _decode_results(message, time_unit))
    rows = {name: RowComparison(want, judgement, time_unit, findings) for name, want in wanted_rows.items()}
    decoded = _without_rows(rows, decoded)
    for message, identity, found, fault in decoded:
        name = join_of(identity)
        if not identity:
            findings.differ("unexpected", RESULTS, "", f"{message.place}: {fault}")
            continue
        if name not in wanted:
            findings.count("results of other applications")
            continue
        at, want = places[name].get(identity), wanted[name]
        if at is None or want.failed[at]:
            why = "this pair is not expected" if at is None else "its function fails, so a dead letter is expected"
            findings.differ("unexpected", RESULTS, name, f"pair {identity} at {message.place}: {why}")
            continue
        if at in seen[name]:
            text = f"pair {identity}: at {seen[name][at]} and again at {message.place}"
            findings.differ("doubled", RESULTS, name, text)
        seen[name].setdefault(at, message.place)
        wrong = [fault] if found is None else altered_fields(want, at, found, message, time_unit)
        if wrong:
            findings.differ("altered", RESULTS, name, f"pair {identity} at {message.place}: {'; '.join(wrong)}")
    for name, want in wanted.items():
        _count_results(want, seen[name], judgement, findings)


def _without_rows(rows: dict[str, RowComparison], decoded: list[_Decoded]) -> list[_Decoded]:
    """Compare the aligned rows among the results, and return the other results."""
    rest = []
    for one in decoded:
        message, identity, _, _ = one
        if (of := rows.get(join_of(identity))) is not None:
            of.add(message, identity)
        else:
            rest.append(one)
    for comparison in rows.values():
        comparison.conclude()
    return rest


def _places(want: ExpectedPairs, judgement: UnitJudgement) -> dict[str, int]:
    return {_pair_id(want, at, judgement): at for at in range(len(want.left))}


def _pair_id(want: ExpectedPairs, at: int, judgement: UnitJudgement) -> str:
    left, right = (judgement.position(int(seq[at])) for seq in (want.pairs.left_seq, want.pairs.right_seq))
    return pair_id(want.join.name, judgement.unit, left, right)


def _decode_results(message: Message, time_unit: str) -> list[tuple[str, FoundJoined | None, str]]:
    """Decode each result in a message; see `_decode_result`."""
    if not message.value or message.value.startswith(b"{"):
        return [_decode_result(message)]
    try:
        from joiner.check.verify.arrow_results import results_of  # noqa: PLC0415 - pyarrow is an extra

        return [(found.id, found, "") for found in results_of(message.value, time_unit)]
    except (ImportError, Unreadable) as error:
        return [("", None, f"not a valid result: {error}")]


def _decode_result(message: Message) -> tuple[str, FoundJoined | None, str]:
    """Return a result's id, the decoded result, and what is wrong with it.

    The id and the fault may be empty, and the result None.
    """
    try:
        found = _joined.decode(message.value or b"")
        return found.id, found, ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fault = f"not a valid result: {error}"
    try:
        return _ids.decode(message.value or b"").id, None, fault
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", None, fault


def _count_results(want: ExpectedPairs, seen: dict[int, str], judgement: UnitJudgement, findings: Findings) -> None:
    tally = findings.tally(RESULTS, want.join.name)
    for at in range(len(want.left)):
        if want.failed[at]:
            continue
        if not want.due[at]:
            tally.after += at in seen
            continue
        tally.expected += 1
        if at in seen:
            tally.found += 1
        else:
            findings.differ("missing", RESULTS, want.join.name, _shown_pair(want, at, judgement))


def _shown_pair(want: ExpectedPairs, at: int, judgement: UnitJudgement) -> str:
    left, right = (judgement.position(int(seq[at])) for seq in (want.pairs.left_seq, want.pairs.right_seq))
    topics = [side.topic for side in judgement.sides if side.join.name == want.join.name]
    return (
        f"pair {_pair_id(want, at, judgement)} of {want.left[at].thing}: "
        f"left {topics[0]} partition {judgement.unit} offset {left}, "
        f"right {topics[1]} partition {judgement.unit} offset {right}"
    )


def compare_late(
    judgement: UnitJudgement,
    side: SideJudgement,
    outputs: Outputs,
    founded: dict[str, int],
    due: dict[str, int],
    findings: Findings,
) -> None:
    """Compare one side's late records with the late topic, and remove them from ``outputs``.

    Those before the offsets ``founded`` are not expected.
    """
    for seq in sorted(side.late):
        if judgement.offset(seq) < founded[side.topic]:
            continue
        identity = f"{side.join.name}:{judgement.unit}:{side.side}:{judgement.position(seq)}"
        is_due = judgement.offset(seq) < due[side.topic]
        _compare_output(LATE, identity, seq, side, judgement, outputs, findings, is_due=is_due)


def compare_unmatched(
    judgement: UnitJudgement, side: SideJudgement, want: ExpectedPairs, outputs: Outputs, findings: Findings
) -> None:
    """Compare one side's unmatched records with their topic, and remove them from ``outputs``."""
    for seq in sorted(want.unmatched[side.side]):
        position = judgement.position(seq)
        place = f"{position}:" if side.side == "left" else f":{position}"
        identity, is_due = f"{side.join.name}:{judgement.unit}:{place}", seq in want.unmatched_due[side.side]
        _compare_output(UNMATCHED, identity, seq, side, judgement, outputs, findings, is_due=is_due)


def _compare_output(
    what: str,
    identity: str,
    seq: int,
    side: SideJudgement,
    judgement: UnitJudgement,
    outputs: Outputs,
    findings: Findings,
    *,
    is_due: bool,
) -> None:
    name = side.join.name
    at = judgement.position(seq)
    place = f"{what.removesuffix('s')} {identity}: {side.topic} partition {judgement.unit} offset {at}"
    found = outputs.by_kind[what].pop(identity, [])
    _count(findings.tally(what, name), what, name, place, [message.place for message in found], findings, is_due=is_due)
    for message in found:
        wrong = _altered_output(message, side, judgement, seq)
        if wrong:
            findings.differ("altered", what, name, f"{identity} at {message.place}: {'; '.join(wrong)}")


def _altered_output(message: Message, side: SideJudgement, judgement: UnitJudgement, seq: int) -> list[str]:
    try:
        found = _output.decode(message.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return [f"not a valid record: {error}"]
    want = {
        "join": side.join.name,
        "side": side.side,
        "topic": side.topic,
        "partition": judgement.unit,
        "offset": judgement.offset(seq),
        "row": judgement.row(seq),
    }
    wrong = [
        f"{name}: {getattr(found, name)!r}, expected {value!r}"
        for name, value in want.items()
        if getattr(found, name) != value
    ]
    record = judgement.records_of(side)[seq]
    if found.record.thing != record.thing:
        wrong.append(f"record.thing: {found.record.thing!r}, expected {record.thing!r}")
    return wrong + altered_record(found.record, record, "record.")


def compare_rejected(
    judgement: UnitJudgement, outputs: Outputs, founded: dict[str, int], due: dict[str, int], findings: Findings
) -> None:
    """Compare the unit's rejected records with the dead letters, and remove them from ``outputs``.

    Those before the offsets ``founded`` are not expected.
    """
    tally = findings.tally(REJECTED)
    for identity, want in judgement.rejected.items():
        if want.offset < founded[want.topic]:
            continue
        found = outputs.rejected.pop(identity, [])
        place = f"rejected record {want.topic} partition {want.partition} offset {want.offset} ({want.reason})"
        is_due = want.offset < due[want.topic]
        _count(tally, REJECTED, "", place, [message.place for message, _ in found], findings, is_due=is_due)
        for message, dead_letter in found:
            wrong = [
                f"{name}: {getattr(dead_letter, name)!r}, expected {getattr(want, name)!r}"
                for name in ("topic", "partition", "offset", "row", "length", "sha256", "encoding", "value")
                if getattr(dead_letter, name) != getattr(want, name)
            ]
            if wrong:
                text = f"dead letter {identity} at {message.place}: {'; '.join(wrong)}"
                findings.differ("altered", REJECTED, "", text)


def compare_failed(want: ExpectedPairs, judgement: UnitJudgement, outputs: Outputs, findings: Findings) -> None:
    """Compare the pairs whose joining function failed with their dead letters, and remove those from ``outputs``."""
    name = want.join.name
    tally = findings.tally(FAILED, name)
    for at in want.failed.nonzero()[0].tolist():
        identity = _pair_id(want, at, judgement)
        found = [message.place for message, _ in outputs.rejected.pop(identity, [])]
        place = f"dead letter of pair {identity}, whose joining function fails"
        _count(tally, FAILED, name, place, found, findings, is_due=bool(want.due[at]))


def compare_failed_rows(want: ExpectedRows, outputs: Outputs, findings: Findings) -> None:
    """Compare the rows whose function failed with their dead letters, and remove those from ``outputs``."""
    name = want.align.name
    if want.align.function is None:
        return
    tally = findings.tally(FAILED_ROWS, name)
    for identity, row in want.ids.items():
        if row in want.failed:
            found = [message.place for message, _ in outputs.rejected.pop(identity, [])]
            place = f"dead letter of row {identity}, whose function fails"
            _count(tally, FAILED_ROWS, name, place, found, findings, is_due=row in want.due)


def compare_rest(outputs: Outputs, findings: Findings) -> None:
    """Report all remaining outputs as unexpected."""
    for what, by_id in outputs.by_kind.items():
        for identity, messages in by_id.items():
            text = f"{identity} at {messages[0].place}: this record is not expected"
            findings.differ("unexpected", what, join_of(identity), text, len(messages))
    for identity, dead_letters in outputs.rejected.items():
        message, dead_letter = dead_letters[0]
        text = f"{identity} at {message.place}: this dead letter is not expected (reason: {dead_letter.reason})"
        findings.differ("unexpected", REJECTED, "", text, len(dead_letters))


def _count(
    tally: Tally,
    what: str,
    join: str,
    place: str,
    found: list[str],
    findings: Findings,
    *,
    is_due: bool,
) -> None:
    """Count one expected output. ``found``: the places where copies of it were found."""
    if is_due:
        tally.expected += 1
        tally.found += bool(found)
    else:
        tally.after += bool(found)
    if is_due and not found:
        findings.differ("missing", what, join, place)
    for again in found[1:]:
        findings.differ("doubled", what, join, f"{place}: at {found[0]} and again at {again}")
