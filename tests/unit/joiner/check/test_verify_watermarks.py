"""Does `tester.py verify` find a watermark that a later result contradicts, and pass those that are true?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from joiner.check.found.findings import Findings
from joiner.check.report import render_findings
from joiner.check.verify.outputs import verify
from tests.unit.joiner.check.pretended_pipeline import Pipeline, make_pipeline


@pytest.fixture
def pipeline() -> Pipeline:
    return make_pipeline(seed=3)


def with_watermark(pipeline: Pipeline, mark: Any, *, at: int, of_thing: bool = True, **more: str) -> Findings:
    """Check the pipeline with a watermark before its result number ``at``, for the quantity of that result."""
    places = [place for place, message in enumerate(pipeline.outputs) if message.topic == "machine.out"]
    result = pipeline.outputs[places[at]]
    content = json.loads(result.value or b"")
    scope = {"quantity": content["quantity"]} | ({"thing": content["thing"]} if of_thing else {}) | more
    value = json.dumps({"mark": mark, **scope}).encode()
    pipeline.outputs.insert(places[at] + (at < 0), result._replace(offset=10**6, value=value))
    return verify(pipeline.settings, pipeline.evidence())


@pytest.mark.parametrize("of_thing", [True, False])
def test_a_watermark_that_a_later_result_contradicts_is_found(pipeline: Pipeline, *, of_thing: bool) -> None:
    findings = with_watermark(pipeline, "2100-01-01T00:00:00Z", at=2, of_thing=of_thing)
    assert findings.tally("output watermarks").unexpected == 1
    assert (findings.total.unexpected, findings.total.missing, findings.total.altered) == (1, 0, 0)
    assert "is not true" in render_findings(findings)


@pytest.mark.parametrize("of_thing", [True, False])
def test_a_watermark_before_later_results_alone_is_right_and_no_result(pipeline: Pipeline, *, of_thing: bool) -> None:
    findings = with_watermark(pipeline, 0, at=2, of_thing=of_thing)
    assert findings.is_right, render_findings(findings)
    assert findings.counts["watermarks written"] == 1


def test_a_watermark_behind_the_last_result_is_right_however_high_it_is(pipeline: Pipeline) -> None:
    assert with_watermark(pipeline, "2100-01-01T00:00:00Z", at=-1).is_right


def test_a_watermark_says_nothing_about_other_things_and_quantities(pipeline: Pipeline) -> None:
    assert with_watermark(pipeline, "2100-01-01T00:00:00Z", at=0, thing="nobody").is_right
    assert with_watermark(pipeline, "2100-01-01T00:00:00Z", at=0, quantity="something else").is_right


def test_a_mark_at_the_time_of_a_later_result_is_right_and_one_behind_it_is_not() -> None:
    pipeline = make_pipeline(seed=3)
    results = [json.loads(one.value or b"") for one in pipeline.outputs if one.topic == "machine.out"]
    whole = next(at for at, one in enumerate(results) if isinstance(one["phenomenonTime"], int))
    scope = [one for one in results[whole:] if (one["quantity"], one["thing"]) == _scope(results[whole])]
    oldest = int(min(one["phenomenonTime"] for one in scope))
    assert with_watermark(pipeline, oldest, at=whole).is_right
    findings = with_watermark(make_pipeline(seed=3), oldest + 1, at=whole)
    assert findings.tally("output watermarks").unexpected == 1


def _scope(result: dict[str, Any]) -> tuple[str, str]:
    return result["quantity"], result["thing"]
