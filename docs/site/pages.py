"""What the site shows: the pages of the root and of docs/, under the paths that they have in the repository.

So a link from one page to another is the same on the site as in the repository, and no page is written twice.
`make docs` calls these hooks.
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
"""The style of Pygments, by the part of a page that it is for."""

_INFO: Final = re.compile(r"^```(\w+) [^`\n]*$", re.MULTILINE)
_PROMPT: Final = re.compile(r"^```python\n(?=>>>)", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Anchors are those that repositories show, so a link to a heading is right in both."""
    config.mdx_configs["toc"]["slugify"] = slugify
    return config


def on_files(files: Files, config: Any) -> Files:
    """The pages and their pictures, in the place of what lies in the folder of the configuration."""
    names = [path.relative_to(ROOT).as_posix() for pattern in SHOWN for path in sorted(ROOT.glob(pattern))]
    shown = [File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in names]
    colours = "\n".join(HtmlFormatter(style=style).get_style_defs(part) for part, style in CODE_COLOURS.items())
    theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*theme, *shown, File.generated(config, "docs/site/code.css", content=colours)])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text with fences that the site's Markdown reads: one word behind each, `pycon` where a prompt is shown."""
    return _PROMPT.sub("```pycon\n", _INFO.sub(r"```\1", markdown))


def slugify(heading: str, separator: str) -> str:
    """A heading as an anchor: lower case, without punctuation, each blank a hyphen."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in "_- ")
    return kept.strip().replace(" ", separator)
