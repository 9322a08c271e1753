"""The project's documents as data: pages, tables, code, links. Reads text and decides nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[3]
DOCS: Final = ROOT / "docs"
PACKAGES: Final = ("broker", "connector", "db_connector", "demo", "joiner", "simulator")

_FENCE: Final = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[[^\]\n]*(?:\[[^\]]*\][^\]\n]*)*\]\(([^)\s]+)\)")
_NOT_IN_SLUG: Final = re.compile(r"[^\w\- ]")


class Row(NamedTuple):
    """A row of a table: the section (heading) it stands under, the first column's title, the cells."""

    section: str
    title: str
    cells: list[str]


class Block(NamedTuple):
    """A fenced block: what stands behind the fence (``json record``), and the text."""

    info: str
    text: str


def pages() -> list[Path]:
    """Every page, in the root and in docs/."""
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def shown(path: Path) -> str:
    """The path from the root."""
    return str(path.relative_to(ROOT))


def read(path: Path) -> str:
    """The text of a page."""
    return path.read_text(encoding="utf-8")


def fenced(page: Path) -> list[Block]:
    """All fenced blocks, in their order."""
    return [Block(match[1].strip(), match[2]) for match in _FENCE.finditer(read(page))]


def blocks(page: Path, kind: str) -> list[Block]:
    """The fenced blocks of ``kind``, the first word behind the fence."""
    return [block for block in fenced(page) if block.info.split(" ")[0] == kind]


def code(page: Path) -> list[str]:
    """Everything that is set as code: fenced blocks without a language, indented ones, and spans."""
    text = read(page)
    spans = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    indented = [line for line in text.splitlines() if line.startswith("    ")]
    return [block.text for block in blocks(page, "")] + spans + indented


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", read(page))


def rows(page: Path) -> Iterator[Row]:
    """The rows of all tables."""
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
    """The targets of all links."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """What a link can name within the page: its headings, as the usual viewers write them."""
    headings = [line.lstrip("# ").strip() for line in prose(page).splitlines() if line.startswith("#")]
    return {_NOT_IN_SLUG.sub("", heading.lower()).replace(" ", "-") for heading in headings}


def sources() -> list[Path]:
    """The Python files of the packages."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
