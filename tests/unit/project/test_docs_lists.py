"""Lists on the pages match the code: sections, commit steps, retry waits, releases."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, cast

import pytest

from broker.settings import SECTIONS, TopicSettings
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka import transaction
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.model import Checkpoint, checkpoint_key
from joiner.runtime.ownership.retry_policy import CAUSES, JITTER
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.effects import Outgoing
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.project.documents import DOCS, ROOT, read, rows


def test_the_list_of_sections_names_every_section() -> None:
    cells = [row.cells[0] for row in rows(DOCS / "configuration.md") if row.title == "section"]
    named = {name for cell in cells for name in re.findall(r"#(\w+)", cell)}
    assert named == SECTIONS


class RecordedSteps:
    """A `UnitProducer` that records the steps of a transaction, in the words of the page."""

    was_asked_again = False

    def __init__(self, topics: TopicSettings) -> None:
        self.firsts: dict[str, int] = {}
        self.steps: list[str] = []
        self._words = {
            topics.out: "results",
            topics.late: "late records",
            topics.unmatched: "unmatched records",
            topics.rejected: "dead letters",
        }

    def begin(self) -> None:
        self.steps.append("begin")

    def send_offsets(self, _offsets: Mapping[str, int]) -> None:
        self.steps.append("offsets")

    def write_all(self, messages: Outgoing) -> None:
        self.firsts = dict.fromkeys(messages, 0)
        self.steps.append(", ".join(self._words[topic] for topic in messages))

    def write(self, _topic: str, key: str, _value: bytes | None) -> None:
        step = "checkpoint" if key == checkpoint_key(4) else "snapshot"
        if self.steps[-1] != step:
            self.steps.append(step)

    def commit(self) -> None:
        self.steps.append("commit")


def test_the_steps_of_a_commit_are_told_in_the_order_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings()
    producer = RecordedSteps(settings.topics)
    monkeypatch.setattr(transaction, "UnitProducer", lambda *_given: producer)
    monkeypatch.setattr(transaction, "log_ends", lambda _consumer, topics, _unit: dict.fromkeys(topics, 9))
    topics = settings.topics
    effects: Outgoing = {
        topic: Batch.of(None, [b"{}"]) for topic in (topics.out, topics.late, topics.unmatched, topics.rejected)
    }
    checkpoint = Checkpoint(1, "app", 4, "run", "one", "green", {}, {}, {}, 1, "", {}, {}, {})
    of_unit = transaction.UnitTransactions(settings, 4, cast("Any", None), SystemClock())
    of_unit.commit(effects, checkpoint, (b"snapshot", SnapshotPlace(-1, [0, 2])))
    page = read(DOCS / "recovery.md").partition("## A commit")[2].partition("\n### ")[0]
    told = re.findall(r"^\d+\. (.*)", page, re.MULTILINE)
    assert len(told) == len(producer.steps)
    for step, written in zip(told, producer.steps, strict=True):
        assert [word for word in written.split(", ") if word not in step] == []


def test_the_steps_of_a_commit_are_listed_once() -> None:
    texts = [transaction.__doc__ or "", read(ROOT / "ARCHITECTURE.md")]
    assert [text for text in texts if re.search(r"^ *\d\. begin$", text, re.MULTILINE)] == []
    assert "recovery.md" in texts[0]
    assert "recovery.md#a-commit" in texts[1]


def test_the_waits_before_another_attempt_are_those_of_the_code() -> None:
    page = read(DOCS / "recovery.md").partition("## Retries")[2].partition("\n## ")[0]
    told = {(first, longest) for first, longest in re.findall(r"\| (\S+) s \| (\S+) s(?:,[^|]*)? \|", page)}
    assert told == {(f"{one.first_s:g}", f"{one.longest_s:g}") for one in CAUSES if one.first_s is not None}
    (lasts_s,) = [one.lasts_s for one in CAUSES if one.lasts_s < float("inf")]
    assert f"for {lasts_s:g} s in all; then it fails" in page
    assert "a random factor between {:g} and {:g}".format(*JITTER) in page


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    version = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["version"]
    releases = re.findall(r"^## (\S+)", read(ROOT / "CHANGELOG.md"), re.MULTILINE)
    # Changes for the next release may be listed before it.
    assert releases[releases[0] == "Unreleased"] == version
