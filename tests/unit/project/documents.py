"""Reads the project's documents as data: pages, tables, code, links. The checks are in the tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[3]
DOCS: Final = ROOT / "docs"
PACKAGES: Final = ("broker", "connector", "control", "db_connector", "demo", "joiner", "simulator")

_FENCE: Final = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[[^\]\n]*(?:\[[^\]]*\][^\]\n]*)*\]\(([^)\s]+)\)")
_NOT_IN_SLUG: Final = re.compile(r"[^\w\- ]")


class Row(NamedTuple):
    """A row of a table: the heading of its section, the title of the first column, and the cells."""

    section: str
    title: str
    cells: list[str]


class Block(NamedTuple):
    """A fenced block: its info string (``json record``), and its text."""

    info: str
    text: str


def pages() -> list[Path]:
    """Return all pages, in the root and in docs/."""
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def shown(path: Path) -> str:
    """Return the path relative to the root."""
    return str(path.relative_to(ROOT))


def read(path: Path) -> str:
    """Return the text of a page."""
    return path.read_text(encoding="utf-8")


def fenced(page: Path) -> list[Block]:
    """Return all fenced blocks, in order."""
    return [Block(match[1].strip(), match[2]) for match in _FENCE.finditer(read(page))]


def blocks(page: Path, kind: str) -> list[Block]:
    """Return the fenced blocks of ``kind``, the first word of the info string."""
    return [block for block in fenced(page) if block.info.split(" ")[0] == kind]


def code(page: Path) -> list[str]:
    """Return all code: fenced blocks without a language, indented lines, and code spans."""
    text = read(page)
    spans = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    indented = [line for line in text.splitlines() if line.startswith("    ")]
    return [block.text for block in blocks(page, "")] + spans + indented


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return _FENCE.sub("", read(page))


def rows(page: Path) -> Iterator[Row]:
    """Yield the rows of all tables."""
    section, title = "", ""
    for line in prose(page).splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ").strip()
        if not line.startswith("|"):
            title = ""
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not title:
            title = cells[0]
        elif set(line) - set("|-: "):
            yield Row(section, title, cells)


def links(page: Path) -> list[str]:
    """Return the targets of all links."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Return the anchors of the page: the slugs of its headings, as common viewers generate them."""
    headings = [line.lstrip("# ").strip() for line in prose(page).splitlines() if line.startswith("#")]
    return {_NOT_IN_SLUG.sub("", heading.lower()).replace(" ", "-") for heading in headings}


def sources() -> list[Path]:
    """Return the Python files of the packages."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
