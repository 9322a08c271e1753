"""Checks a pipeline: compares its outputs with those that follow from its inputs up to the committed vector C.

    1. Read each unit's C from its newest committed checkpoint.
    2. Read the late and unmatched records, the dead letters and, if requested, the points in the database.
    3. For each unit, read the results in its partition, then C once more (C'). Read its input logs from the start to C
       and on to C', and classify each record. The pairs that are certain at C are required; those that are certain
       only at C' are permitted.
    4. Report all other outputs as unexpected.

If the joiner is at rest, C' = C and the check is exact. Which outputs are emitted depends only on the vector, so a run
can be checked from the outside, however often it was restarted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from joiner.check.found.evidence import EvidenceError
from joiner.check.found.findings import Findings
from joiner.check.verify import comparison
from joiner.check.verify.judgement import UnitJudgement
from joiner.check.verify.output_watermarks import without_watermarks
from joiner.check.verify.pairs import certain_now, expect_pairs
from joiner.check.verify.rows import expect_rows, rows_now
from joiner.runtime.model import semantic_differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joiner.check.found.evidence import Evidence
    from joiner.check.model.expected_rows import RowKey, Rows
    from joiner.check.verify.judgement import SideJudgement
    from joiner.check.verify.pairs import Certain, ExpectedPairs
    from joiner.check.verify.rows import ExpectedRows
    from joiner.runtime.model import Checkpoint
    from joiner.runtime.settings import JoinerSettings


class WrongApplicationError(Exception):
    """The application runs with different settings. The message names the differences."""


class Span(NamedTuple):
    """Offsets by input topic: where the unit started, C (``due``) and C' (``stop``).

    ``founded``: up to where the unit of a replica was founded; nothing that was due there is expected of it. Otherwise,
    it is ``start``.
    """

    start: dict[str, int]
    founded: dict[str, int]
    due: dict[str, int]
    stop: dict[str, int]


@dataclass(frozen=True)
class UnitResult:
    """A compared unit's data, for further checks. A check must not keep it, because it is large."""

    span: Span
    judgement: UnitJudgement
    pairs: dict[str, ExpectedPairs]
    rows: dict[str, ExpectedRows]


class FurtherCheck(Protocol):
    """An additional check of the replayed file or the database."""

    def add_unit(self, result: UnitResult) -> None:
        """Check the outputs of one unit that has been compared."""
        ...

    def conclude(self, outputs: comparison.Outputs, findings: Findings) -> None:
        """Add to the findings once all units have been checked."""
        ...


def verify(
    settings: JoinerSettings,
    evidence: Evidence,
    *,
    further: Sequence[FurtherCheck] = (),
    examples_max: int = 5,
) -> Findings:
    """Check an application. Raises `EvidenceError` or `WrongApplicationError` if it cannot be checked."""
    findings = Findings(examples_max)
    begun = _begun_units(settings, evidence, findings)
    outputs = comparison.read_outputs(evidence, settings, findings, comparison.ends_before(begun, settings))
    for unit in range(settings.topics.partitions):
        result = _verify_unit(settings, evidence, unit, begun.get(unit), outputs, findings)
        for check in further:
            check.add_unit(result)
    comparison.compare_rest(outputs, findings)
    for check in further:
        check.conclude(outputs, findings)
    return findings


def _begun_units(settings: JoinerSettings, evidence: Evidence, findings: Findings) -> dict[int, Checkpoint]:
    begun = {}
    for unit in range(settings.topics.partitions):
        checkpoint = evidence.checkpoint(unit)
        if checkpoint is None:
            findings.notes.append(f"unit {unit} has no checkpoint, so the application has not started it")
        else:
            _check_same_application(settings, checkpoint)
            begun[unit] = checkpoint
    if not begun:
        message = (
            f"the application {settings.application.name!r} has committed nothing to {settings.state_topic}: "
            "start the joiner, or correct application.name"
        )
        raise EvidenceError(message)
    return begun


def _check_same_application(settings: JoinerSettings, checkpoint: Checkpoint) -> None:
    if checkpoint.fingerprint == settings.fingerprint():
        return
    differing = semantic_differences(checkpoint.semantics, settings.semantics())
    what = "; ".join(f"{path} was {ran!r} and is {given!r} here" for path, ran, given in differing[:10])
    message = (
        f"unit {checkpoint.unit} of {checkpoint.application!r} ran with different settings: "
        f"{what or 'only the fingerprint differs'}. Pass the settings file that it ran with (--config)"
    )
    raise WrongApplicationError(message)


def _verify_unit(
    settings: JoinerSettings,
    evidence: Evidence,
    unit: int,
    checkpoint: Checkpoint | None,
    outputs: comparison.Outputs,
    findings: Findings,
) -> UnitResult:
    ends = comparison.ends_before({} if checkpoint is None else {unit: checkpoint}, settings)
    results = without_watermarks(list(comparison.without_starts(evidence.out(unit), ends)), settings, findings)
    span = _span(settings, checkpoint, evidence.checkpoint_after(unit))
    judgement = UnitJudgement(settings, unit)
    pairs, rows = _judge_unit(settings, evidence, span, judgement)
    comparison.compare_results(pairs, rows, results, judgement, settings.events.time_unit, findings)
    for side in judgement.sides:
        comparison.compare_late(judgement, side, outputs, span.founded, span.due, findings)
        if side.join.name in pairs:
            comparison.compare_unmatched(judgement, side, pairs[side.join.name], outputs, findings)
    comparison.compare_rejected(judgement, outputs, span.founded, span.due, findings)
    for want in pairs.values():
        comparison.compare_failed(want, judgement, outputs, findings)
    for want_rows in rows.values():
        comparison.compare_failed_rows(want_rows, outputs, findings)
    result = UnitResult(span, judgement, pairs, rows)
    _report_unit(evidence, result, findings)
    return result


def _span(settings: JoinerSettings, checkpoint: Checkpoint | None, later: Checkpoint | None) -> Span:
    """Return where the unit started, C and C'.

    A unit without a checkpoint has not consumed anything, so any output from it is unexpected.
    """
    newest = later or checkpoint
    if newest is None:
        nothing = dict.fromkeys(settings.input_topics, 0)
        return Span(nothing, nothing, nothing, nothing)
    _check_same_application(settings, newest)
    founded = newest.founded or newest.start
    due = founded if checkpoint is None else checkpoint.offsets
    span = Span(newest.start, founded, due, newest.offsets)
    for topic in settings.input_topics:
        if not all(topic in offsets for offsets in span):
            message = f"the checkpoint of unit {newest.unit} has no offset for the input topic {topic}"
            raise EvidenceError(message)
        if span.stop[topic] < span.due[topic]:
            message = (
                f"unit {newest.unit} went back from offset {span.due[topic]} to {span.stop[topic]} of "
                f"{topic} during the check: the application was reset; run the check again"
            )
            raise EvidenceError(message)
    return span


def _judge_unit(
    settings: JoinerSettings, evidence: Evidence, span: Span, judgement: UnitJudgement
) -> tuple[dict[str, ExpectedPairs], dict[str, ExpectedRows]]:
    """Return each join's permitted pairs and each align's permitted rows, and mark those that are required."""
    topics = {side.topic: None for side in judgement.sides}
    sides = {operator.name: judgement.sides_of(operator.name) for operator in settings.operators}

    def read(begin: dict[str, int], end: dict[str, int]) -> None:
        for topic in topics:
            judgement.read(topic, evidence.inputs(judgement.unit, topic, begin[topic], end[topic]))

    def certain() -> tuple[dict[str, Certain], dict[str, Rows[RowKey]]]:
        """Return what is certain of each join and each align, given the records read so far."""
        pairs = {join.name: certain_now(join, sides[join.name]) for join in settings.join}
        return pairs, {align.name: rows_now(judgement, align, sides[align.name]) for align in settings.align}

    nothing: tuple[dict[str, Certain], dict[str, Rows[RowKey]]] = ({}, {})
    pairs_before, rows_before = pairs_due, rows_due = nothing
    if span.founded != span.start:
        read(span.start, span.founded)
        pairs_before, rows_before = certain()
    read(span.founded, span.due)
    if span.stop != span.due:
        pairs_due, rows_due = certain()
        read(span.due, span.stop)
    pairs = {
        name: expect_pairs(judgement, join, sides[name], pairs_due.get(name), pairs_before.get(name))
        for name, join in ((join.name, join) for join in settings.join)
    }
    rows = {
        name: expect_rows(judgement, align, sides[name], rows_due.get(name), rows_before.get(name))
        for name, align in ((align.name, align) for align in settings.align)
    }
    return pairs, rows


def _report_unit(evidence: Evidence, result: UnitResult, findings: Findings) -> None:
    judgement, span = result.judgement, result.span
    unread = sum(evidence.unread(judgement.unit, topic, span.stop[topic]) for topic in span.stop)
    findings.units.append(
        {
            "unit": judgement.unit,
            "start": span.start,
            "offsets": span.due,
            "offsets_after": span.stop,
            "unread": unread,
        }
    )
    findings.count("input records", judgement.read_count)
    findings.count("watermarks", judgement.watermarks)
    findings.count("rejected records", len(judgement.rejected))
    findings.count("not selected", judgement.not_selected)
    findings.count("not consumed yet (log offsets)", unread)
    for side in judgement.sides:
        row = next((r for r in findings.sides if (r["join"], r["side"]) == (side.join.name, side.side)), None)
        if row is None:
            row = {"join": side.join.name, "side": side.side}
            findings.sides.append(row)
        joined, unmatched = (len(some) for some in (joined_offsets(result, side), unmatched_offsets(result, side)))
        numbers = {
            "accepted": len(side.accepted),
            "joined": joined,
            "unmatched": unmatched,
            "waiting": len(side.accepted) - joined - unmatched,
            "late": len(side.late),
            "duplicate": len(side.duplicates),
        }
        row.update({name: row.get(name, 0) + number for name, number in numbers.items()})


def joined_offsets(result: UnitResult, side: SideJudgement) -> set[int]:
    """Return the positions of the side's records that are in at least one pair or row."""
    if side.join.name in result.rows:
        return result.rows[side.join.name].used(side.side)
    pairs = result.pairs[side.join.name].pairs
    return set((pairs.left_seq if side.side == "left" else pairs.right_seq).tolist())


def unmatched_offsets(result: UnitResult, side: SideJudgement) -> set[int]:
    """Return the positions of the side's unmatched records or, for an align's driver, those of left-out rows."""
    if side.join.name in result.rows:
        return result.rows[side.join.name].left_out(side.side)
    return result.pairs[side.join.name].unmatched[side.side]
