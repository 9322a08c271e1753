"""A chain of three applications: joins, an align of their results, and an align of its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.integration.joiner_application import BASE_MS, PARTITIONS, Application, Entry
from tests.integration.services import wait_until

_SNAPSHOTS: Final = 'snapshot_interval = "700ms"'
_WATERMARKS: Final = f'{_SNAPSHOTS}\nwatermark_interval = "200ms"'

_SECOND: Final = """
[[align]]
name = "table"
driver = "mechPower"
lateness = "36500d"

[align.columns]
speedGap = { tolerance = "20s", lateness = "36500d" }
"""

_THIRD: Final = """
[[align]]
name = "last"
driver = "table"
lateness = "36500d"

[align.columns]
next = { rule = "next", tolerance = "20s", lateness = "36500d", stream = { topic = "OUT", quantity = "speedGap" } }
"""


class Chain(NamedTuple):
    """The applications of a chain. The first reads records, and each further one the results of those before it."""

    first: Application
    second: Application
    third: Application

    def release(self) -> int:
        """Write a watermark at the start, and wait until every row has come out at the end. Return their number."""
        self.first.wait_until_through()
        # No further record arrives.
        mark = json.dumps({"mark": BASE_MS + 10**9}).encode()
        self.first.produce(Entry("", mark, partition) for partition in range(PARTITIONS))
        self.first.wait_until_through()
        self.first.wait_until_decided("out")
        powers = len(results(self.first, "mechPower"))
        wait_until(
            lambda: len(results(self.second, "table")) == powers == len(results(self.third, "last")),
            "every row has come out at the end",
        )
        return powers

    def verify(self) -> None:
        """Run the tester on every application. Check that each row was emitted exactly once and no result was late."""
        for app in self:
            findings = app.verify()
            assert (findings["counts"].get("watermarks written", 0) > PARTITIONS) == (app is not self.third)
            if app is not self.first:
                assert not app.values("late")
                assert not app.values("rejected")
        rows = results(self.third, "last")
        assert len({row["id"] for row in rows}) == len(rows)
        assert any(row["values"]["next"] is not None for row in rows)


@contextmanager
def chain(kafka: str, folder: Path) -> Iterator[Chain]:
    """Make the applications and their topics."""
    folders = [folder / name for name in Chain._fields]
    for one in folders:
        one.mkdir()
    first = Application(kafka, folders[0], application=_WATERMARKS)
    second = Application(kafka, folders[1], application=_WATERMARKS, data=first.topic("out"), aligns=_SECOND)
    aligns = _THIRD.replace("OUT", first.topic("out"))
    third = Application(kafka, folders[2], application=_SNAPSHOTS, data=second.topic("out"), aligns=aligns)
    made = Chain(first, second, third)
    try:
        for app in made:
            app.create_topics()
        yield made
    finally:
        for app in made:
            app.close()


def results(app: Application, quantity: str) -> list[dict[str, Any]]:
    """Return the results with a quantity, without watermarks."""
    found = [content for value in app.values("out") if "id" in (content := json.loads(value))]
    return [content for content in found if content["quantity"] == quantity]
