"""CONTRIBUTING.md lists exactly the test files that may skip tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
_SKIPS = re.compile(r"pytest\.skip\(|mark\.skipif\(|mark\.skip\b|importorskip\(")


def test_the_list_of_what_is_skipped_names_every_file_that_skips_and_no_other() -> None:
    told = re.search(r"^### Skipped tests.*?(?=^## )", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
    assert told is not None
    listed = set(re.findall(r"^\| `(tests/[\w/.]+)`", told[0], re.MULTILINE))
    found = {
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__) and _SKIPS.search(path.read_text())
    }
    compose = Path("tests/compose")
    assert {str(compose if path.is_relative_to(compose) else path) for path in found} == listed
