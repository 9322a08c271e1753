"""Do the records of the audit topic come back as they were written, and are others told apart?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from control.actions.audit import LaterFormat, PutBack, audit_topic_spec, decode_put_back, encode
from tests.unit.joiner.runtime.joiner_inputs import make_settings

RECORD = PutBack(id="a:0:1", partition=2, offset=3, to_topic="a", to_partition=0, by="ada", at=4)


def changed(**members: Any) -> bytes:
    return json.dumps(json.loads(encode(RECORD)) | members).encode()


def test_a_record_is_read_as_it_was_written_and_names_its_kind() -> None:
    assert decode_put_back(encode(RECORD)) == RECORD
    assert json.loads(encode(RECORD))["kind"] == "putback"
    assert decode_put_back(changed(more=1)) == RECORD


@pytest.mark.parametrize(
    "text",
    [None, b"", b"x", b"[]", b"{}", b"\xff", b"[" * 100_000, changed(kind="other"), changed(kind=1), changed(at="x")],
)
def test_what_is_no_record_of_a_known_kind_is_skipped(text: bytes | None) -> None:
    assert decode_put_back(text) is None


def test_a_record_of_a_later_release_is_an_error_only_if_its_kind_is_known() -> None:
    with pytest.raises(LaterFormat, match="upgrade"):
        decode_put_back(changed(format=2))
    assert decode_put_back(changed(format=2, kind="other")) is None


@pytest.mark.parametrize(("retention", "days"), [("7d", 90), ("100d", 100)])
def test_it_is_remembered_at_least_as_long_as_the_dead_letters_are_kept(retention: str, days: int) -> None:
    spec = audit_topic_spec(make_settings(topics={"retention": retention}))
    assert (spec.name, spec.partitions) == ("lsb.audit", 1)
    assert int(spec.initial["retention.ms"]) == days * 86_400_000
    assert spec.required == {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
