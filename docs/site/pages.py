"""Hooks that `make docs` calls to build the documentation site from the Markdown pages in the root and in docs/.

Every page keeps its path in the repository, so links between pages work both on the site and in the repository, and
no page has to be copied.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from properdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

ROOT: Final = Path(__file__).resolve().parents[2]
SHOWN: Final = ("*.md", "docs/**/*.md", "docs/**/*.png", "docs/**/*.svg", "docs/**/*.css", "LICENSE")
CODE_COLOURS: Final = {".codehilite": "default", '[data-bs-theme="dark"] .codehilite': "github-dark"}
"""The Pygments style for each CSS selector."""

_INFO: Final = re.compile(r"^```(\w+) [^`\n]*$", re.MULTILINE)
_PROMPT: Final = re.compile(r"^```python\n(?=>>>)", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Generate heading anchors as code hosts do, so that links to headings work on the site and in the repository."""
    config.mdx_configs["toc"]["slugify"] = slugify
    return config


def on_files(files: Files, config: Any) -> Files:
    """Replace the files of the configuration folder with the repository's pages and images.

    The theme's files are kept, and a stylesheet for code is added.
    """
    names = [path.relative_to(ROOT).as_posix() for pattern in SHOWN for path in sorted(ROOT.glob(pattern))]
    shown = [File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in names]
    colours = "\n".join(HtmlFormatter(style=style).get_style_defs(part) for part, style in CODE_COLOURS.items())
    theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*theme, *shown, File.generated(config, "docs/site/code.css", content=colours)])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite opening code fences for the site's Markdown parser: the language alone, `pycon` for Python prompts."""
    return _PROMPT.sub("```pycon\n", _INFO.sub(r"```\1", markdown))


def slugify(heading: str, separator: str) -> str:
    """Return the anchor of a heading: lower case, without punctuation, with hyphens for spaces."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in "_- ")
    return kept.strip().replace(" ", separator)
