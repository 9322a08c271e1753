"""Does the project speak as its glossary says? What was renamed is used nowhere any more."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path
from typing import Final

from joiner.runtime.runners.lifecycle import UnitState
from tests.unit.project.documents import DOCS, ROOT, read
from tests.unit.project.test_import_arrows import shown, sources

GLOSSARY: Final = DOCS / "glossary.md"
PACKAGES: Final = ("bench", "broker", "connector", "db_connector", "demo", "joiner", "simulator", "tests")


def retired() -> set[str]:
    """The names that the glossary says are used no more, by code or by people."""
    table = read(GLOSSARY).partition("## Words of earlier releases")[2]
    found = set()
    for row in re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE):
        if row != "before" and not row.startswith("---"):
            found |= {name.strip("`") for name in row.split(", ")}
    return found


def names_in(path: Path) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def test_no_retired_name_is_used_in_the_code() -> None:
    # A service's counts for its log have the name, too, and are something else.
    gone = {name for name in retired() if name.isidentifier()} - {"Progress"}
    assert len(gone) > 15
    wrong = [f"{shown(path)}: {name}" for path in sources(*PACKAGES) for name in sorted(names_in(path) & gone)]
    assert wrong == []


def test_no_retired_word_is_used_on_a_page_or_in_the_code() -> None:
    words = sorted(name for name in retired() if not name.isidentifier())
    assert words == ["progress record"]
    pages = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *sources(*PACKAGES)]
    known = {GLOSSARY, Path(__file__).resolve()}
    wrong = [
        f"{shown(path)}: {word}"
        for path in pages
        if path.resolve() not in known
        for word in words
        if re.search(rf"\b{word}", path.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert wrong == []


def test_the_states_of_a_unit_are_those_of_the_table() -> None:
    named = re.findall(r"\*(\w+)\*", read(GLOSSARY).partition("## States of a unit")[2].partition("\n## ")[0])
    assert named == [state.value for state in UnitState]
