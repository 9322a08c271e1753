"""Lists on the pages are those of the code: sections, steps of a commit, waits before another attempt, releases."""

from __future__ import annotations

import re
import tomllib

from broker.settings import SECTIONS
from joiner.runtime.kafka import transaction
from joiner.runtime.ownership.retry_policy import CAUSES, JITTER
from tests.unit.project.documents import DOCS, ROOT, read, rows


def test_the_list_of_sections_names_every_section() -> None:
    cells = [row.cells[0] for row in rows(DOCS / "configuration.md") if row.title == "section"]
    named = {name for cell in cells for name in re.findall(r"#(\w+)", cell)}
    assert named == SECTIONS


def test_the_steps_of_a_commit_are_told_in_the_order_of_the_code() -> None:
    kinds = ("begin", "offsets", "late", "snapshot", "checkpoint", "commit")
    orders = []
    for text in (transaction.__doc__ or "", read(DOCS / "recovery.md").partition("## A commit")[2]):
        steps = re.findall(r"^ *[1-6]\. (.*)", text, re.MULTILINE)[: len(kinds)]
        orders.append([next(kind for kind in kinds if kind in step) for step in steps])
    assert orders == [["begin", "offsets", "late", "snapshot", "checkpoint", "commit"]] * 2


def test_the_waits_before_another_attempt_are_those_of_the_code() -> None:
    page = read(DOCS / "recovery.md").partition("## Trying again")[2].partition("\n## ")[0]
    told = {(first, longest) for first, longest in re.findall(r"\| (\S+) s \| (\S+) s(?:,[^|]*)? \|", page)}
    assert told == {(f"{one.first_s:g}", f"{one.longest_s:g}") for one in CAUSES if one.first_s is not None}
    (lasts_s,) = [one.lasts_s for one in CAUSES if one.lasts_s < float("inf")]
    assert f"for {lasts_s:g} s in all; then it fails" in page
    assert "a random number between {:g} and {:g}".format(*JITTER) in page


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    version = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["version"]
    releases = re.findall(r"^## (\S+)", read(ROOT / "CHANGELOG.md"), re.MULTILINE)
    # What comes with the next release may stand before it.
    assert releases[releases[0] == "Unreleased"] == version
