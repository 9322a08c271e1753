"""What does a runner say if it does not end in time after a signal?"""

from __future__ import annotations

import os
import signal

import pytest

from joiner.runtime import shutdown


def test_a_forced_exit_does_not_blame_kafka_because_spark_may_be_what_has_not_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = os.pipe()
    os.write(writer, bytes([signal.SIGTERM]))
    left: list[int] = []
    monkeypatch.setattr(shutdown, "leave", left.append)
    asked: list[bool] = []
    with caplog.at_level("INFO"):
        shutdown._wait(reader, lambda: asked.append(True), 0.0)  # noqa: SLF001 - without a signal to this process
    os.close(reader)
    os.close(writer)
    assert (asked, left) == ([True], [0])
    assert [record.getMessage() for record in caplog.records] == [
        "SIGTERM: stopping",
        "still running after 0 s: exiting without waiting for the final snapshots; no data is lost",
    ]
