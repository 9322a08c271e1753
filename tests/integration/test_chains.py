"""A chain of three applications on real Kafka: joins, an align of their results, and an align of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integration.joiner_application import BASE_MS, PARTITIONS, Application, Entry, seeded_entries
from tests.integration.services import wait_until

WATERMARKS = 'watermark_interval = "200ms"\nsnapshot_interval = "700ms"'

SECOND = """
[[align]]
name = "table"
driver = "mechPower"
lateness = "36500d"

[align.columns]
speedGap = { tolerance = "20s", lateness = "36500d" }
"""

THIRD = """
[[align]]
name = "last"
driver = "table"
lateness = "36500d"

[align.columns]
next = { rule = "next", tolerance = "20s", lateness = "36500d", stream = { topic = "OUT", quantity = "speedGap" } }
"""


def results(app: Application, quantity: str) -> list[dict[str, Any]]:
    """Return the results with a quantity, without watermarks."""
    found = [content for value in app.values("out") if "id" in (content := json.loads(value))]
    return [content for content in found if content["quantity"] == quantity]


def test_a_watermark_at_the_start_of_a_chain_releases_the_rows_at_its_end(kafka: str, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    first = Application(kafka, folders[0], application=WATERMARKS)
    second = Application(kafka, folders[1], application=WATERMARKS, data=first.topic("out"), aligns=SECOND)
    third = Application(kafka, folders[2], data=second.topic("out"), aligns=THIRD.replace("OUT", first.topic("out")))
    chain = (first, second, third)
    try:
        for app in chain:
            app.create_topics()
        entries = seeded_entries(8, 900)
        joiners = [app.start() for app in chain]
        first.produce(entries[:600])
        first.wait_until_through()
        # The application in the middle dies while results and watermarks arrive.
        joiners[1].kill()
        first.produce(entries[600:])
        joiners[1] = second.start()
        for app in chain:
            app.wait_until_through()
        waiting = len(results(second, "table"))
        # No further record arrives.
        mark = json.dumps({"mark": BASE_MS + 10**9}).encode()
        first.produce(Entry("", mark, partition) for partition in range(PARTITIONS))
        first.wait_until_through()
        powers = len(results(first, "mechPower"))
        assert waiting < powers > 60

        def is_released() -> bool:
            return len(results(second, "table")) == powers == len(results(third, "last"))

        wait_until(is_released, "every row has come out at the end")
        for app, joiner in zip(chain, joiners, strict=True):
            assert joiner.stop() == 0
            findings = app.verify()
            assert (findings["counts"].get("watermarks written", 0) > PARTITIONS) == (app is not third)
            if app is not first:
                assert not app.values("late")
                assert not app.values("rejected")
        rows = {row["id"]: row for row in results(third, "last")}
        assert len(rows) == powers
        assert any(row["values"]["next"] is not None for row in rows.values())
    finally:
        for app in chain:
            app.close()
