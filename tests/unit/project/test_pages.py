"""The pages: links, lists, commands and pictures are valid, examples run, and the text is only about the project."""

from __future__ import annotations

import doctest
import importlib
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from docs.plots import alignment, neighbours
from tests.unit.project.documents import (
    DOCS,
    PACKAGES,
    ROOT,
    anchors,
    blocks,
    code,
    links,
    pages,
    prose,
    read,
    shown,
    sources,
)

README: Final = ROOT / "README.md"
DEMO: Final = DOCS / "demo.md"


@pytest.mark.parametrize("page", pages(), ids=shown)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    dead = []
    for link in links(page):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("page", pages(), ids=shown)
def test_a_list_and_a_table_have_an_empty_line_before_them(page: Path) -> None:
    # Without an empty line, the site renders the list as part of the paragraph.
    begins = [
        line
        for before, line in pairwise(prose(page).splitlines())
        if re.match(r"[-*] |\d+\. |\|", line) and re.match(r"[\w(*`]", before) and not re.match(r"\d+\. ", before)
    ]
    assert begins == []


@pytest.mark.parametrize("page", pages(), ids=shown)
def test_every_make_target_and_script_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read(ROOT / "Makefile"), re.MULTILINE))
    text = "\n".join(code(page))
    assert set(re.findall(r"\bmake ([a-z][a-z-]*)", text)) - targets == set()
    scripts = re.findall(r"\bpython (\S+\.py)", text)
    modules = re.findall(r"\bpython -m ((?:" + "|".join(PACKAGES) + r")[\w.]*)", text)
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
    paths = [ROOT / module.replace(".", "/") for module in modules]
    assert [path for path in paths if not (path.with_suffix(".py").is_file() or (path / "__main__.py").is_file())] == []


def test_the_readme_says_how_to_begin() -> None:
    first_screen = "\n".join(read(README).splitlines()[:50])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_the_output_in_the_readme_has_the_lines_of_the_commands() -> None:
    (summary,) = [text for text in code(DEMO) if "== Summary" in text]
    labels = re.findall(r"^  (\S.*?)  +\S", summary.partition("== Summary")[2], re.MULTILINE)
    assert len(labels) > 8
    assert [label for label in labels if f'"{label}"' not in read(ROOT / "demo" / "run.py")] == []
    ends = set(re.findall(r"(?:PASSED|RIGHT): [^`\n]+", read(README) + read(DEMO)))
    told = read(ROOT / "demo" / "run.py") + read(ROOT / "Makefile")
    assert len(ends) == 3
    assert [end for end in ends if end.startswith("PASSED") and end not in told] == []


def test_the_pictures_are_what_their_programs_draw() -> None:
    assert read(neighbours.FILE) == neighbours.drawn(), "redraw it: python docs/plots/neighbours.py"
    assert read(alignment.FILE) == alignment.drawn(), "redraw it: python -m docs.plots.alignment"


def with_examples() -> list[Path]:
    return [page for page in pages() if ">>>" in read(page)]


@pytest.mark.parametrize("page", with_examples(), ids=shown)
def test_the_examples_of_a_page_run(page: Path) -> None:
    names: dict[str, Any] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    told: list[str] = []
    for number, block in enumerate(blocks(page, "python")):
        test = doctest.DocTestParser().get_doctest(block.text, names, f"{shown(page)} block {number}", None, None)
        runner.run(test, out=told.append, clear_globs=False)
        names = test.globs
    assert runner.tries
    assert not runner.failures, "".join(told)


def test_the_examples_in_the_code_run() -> None:
    with_example = [path for path in sources() if re.search(r"^\s*>>> ", read(path), re.MULTILINE)]
    assert with_example
    for path in with_example:
        name = shown(path).removesuffix(".py").replace("/", ".")
        result = doctest.testmod(importlib.import_module(name))
        assert result.attempted
        assert not result.failed, name


def test_the_pages_with_examples_are_those_that_promise_them() -> None:
    assert {shown(page) for page in with_examples()} >= {"README.md", "docs/semantics.md"}


# Concatenated, so that this file does not contain the strings that it bans.
NOT_OF_THE_PROJECT: Final = re.compile(
    "|".join([r"\b(iss" + r"ue|sess" + r"ion|ta" + r"sk) #?\d", r"\b(sub)?ag" + r"ents?\b", r"\bCla" + r"ude\b"]),
    re.IGNORECASE,
)


def test_published_text_speaks_of_the_project_alone() -> None:
    texts = [*pages(), ROOT / "Makefile", ROOT / "lsb.toml", *sources(), *(ROOT / "tests").rglob("*.py")]
    wrong = [
        f"{shown(path)}:{number} {line.strip()[:80]}"
        for path in texts
        for number, line in enumerate(read(path).splitlines(), 1)
        if NOT_OF_THE_PROJECT.search(line)
    ]
    assert wrong == []
