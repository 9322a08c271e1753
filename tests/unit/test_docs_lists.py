"""Lists on the pages are those of the code, whole and in order: sections of the settings, steps of a commit."""

from __future__ import annotations

import re

from broker.settings import SECTIONS
from joiner.run import transaction
from tests.unit.documents import DOCS, read, rows


def test_the_list_of_sections_names_every_section() -> None:
    cells = [row.cells[0] for row in rows(DOCS / "configuration.md") if row.title == "section"]
    named = {name for cell in cells for name in re.findall(r"#(\w+)", cell)}
    assert named == SECTIONS


def test_the_steps_of_a_commit_are_told_in_the_order_of_the_code() -> None:
    kinds = ("begin", "offsets", "late", "snapshot", "progress", "commit")
    orders = []
    for text in (transaction.__doc__ or "", read(DOCS / "recovery.md").partition("## A commit")[2]):
        steps = re.findall(r"^ *[1-6]\. (.*)", text, re.MULTILINE)[: len(kinds)]
        orders.append([next(kind for kind in kinds if kind in step) for step in steps])
    assert orders == [["begin", "offsets", "late", "snapshot", "progress", "commit"]] * 2
