"""The Kafka library's lines: each kind once in a while, none unseen for good."""

from __future__ import annotations

import logging

import pytest

from broker.client_log import client_logger


def test_a_flood_of_one_kind_is_one_line_and_other_kinds_pass(caplog: pytest.LogCaptureFixture) -> None:
    log = client_logger("test.flood")
    for number in range(100):
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "client", f"refused {number}")
    log.log(logging.ERROR, "%s [%s] %s", "FATAL", "client", "fenced")
    assert [record.args[2] for record in caplog.records if isinstance(record.args, tuple)] == ["refused 0", "fenced"]


def test_a_kind_is_told_of_again_after_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("broker.client_log.time.monotonic", lambda: now_s)
    log = client_logger("test.again")
    log.error("%s", "FAIL")
    now_s += 9.9
    log.error("%s", "FAIL")
    assert len(caplog.records) == 1
    now_s += 0.2
    log.error("%s", "FAIL")
    assert len(caplog.records) == 2


def test_one_logger_has_one_filter() -> None:
    assert client_logger("test.one") is client_logger("test.one")
    assert len(client_logger("test.one").filters) == 1
