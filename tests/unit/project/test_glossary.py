"""Does the project use the terms of its glossary, and no retired names?"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.settings import SECTIONS, Section
from connector.settings import Settings as ConnectorService
from db_connector.settings import DbConnectorSettings
from joiner.cli.main import build_parser
from joiner.runtime.runners.lifecycle import UnitState
from joiner.runtime.settings import JoinerSettings
from tests.unit.project.documents import DOCS, ROOT, read, rows
from tests.unit.project.test_import_arrows import parse, shown, sources

GLOSSARY: Final = DOCS / "glossary.md"
PACKAGES: Final = ("bench", "broker", "connector", "control", "db_connector", "demo", "joiner", "simulator", "tests")

STEMS: Final = set(re.findall(r"\w+", """
    mark marks placement placements ahead stuck hindmost foremost told tell tells teller taken settle settled unsettled
    aside letters meters texts journey lender
"""))  # fmt: skip
"""Words that no public name may contain."""

FORMER: Final = {
    # Files that accept, expose or read the names of 0.1.0.
    "broker/wire/records.py": {"mark"},
    "joiner/cli/main.py": {"placement", "--placement", "--take"},
    "joiner/runtime/model.py": {"placement"},
    "joiner/runtime/control.py": {"placement"},
    "joiner/operators.py": {"join.progress"},
    "joiner/runtime/settings.py": {"placement", "application.placement", "application.ahead_max"},
    "joiner/runtime/telemetry/metrics.py": {"lsb_joiner_marks", "lsb_joiner_units_stuck"},
    "joiner/runtime/telemetry/unit_gauges.py": {"placement", "foremost", "hindmost"},
    "tests/unit/joiner/runtime/test_metrics.py": {"placement"},
    "connector/metrics.py": {"lsb_connector_marks"},
    "connector/settings.py": {"connector.ahead_max"},
}  # fmt: skip


def retired() -> set[str]:
    """Return the retired names in both tables of the glossary: words, and names in the code."""
    table = read(GLOSSARY).partition("## Terms of earlier releases")[2]
    found = set()
    for row in re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE):
        if row != "before" and not row.startswith("---"):
            found |= {name.strip("`") for name in row.split(", ")}
    return found


def names_in(path: Path) -> set[str]:
    """Return the identifiers in a module."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def words_of(name: str) -> set[str]:
    """Return the lower-case words of a name: ``lag_records``, ``LagRecords``, ``--lag-records``, ``lag.records``."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word.lower() for word in re.split(r"[^A-Za-z]+", apart) if word}


def settings() -> Iterator[str]:
    """Yield the settings of all services, as ``section.field``."""
    for service in (JoinerSettings, ConnectorService, DbConnectorSettings):
        for name, field in service.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from (f"{name}.{one}" for one in kind.model_fields)


def flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the commands and flags of a command line, except those that are accepted for only one more release."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for name, command in action.choices.items():
                yield name
                yield from flags(command)
        elif action.help != argparse.SUPPRESS:
            yield from action.option_strings


def exported() -> Iterator[str]:
    """Yield the public classes and functions of the packages that users import or run."""
    for path in sources("joiner", "connector", "control", "db_connector", "simulator", "broker"):
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield node.name


def metrics() -> Iterator[str]:
    """Yield the metrics and labels of all services, except those that are exposed for only one more release."""
    for row in rows(DOCS / "metrics.md"):
        if row.title == "metric" and row.section != "Deprecated names":
            yield row.cells[0].strip("`")
            yield from {label.strip("` ") for label in row.cells[2].split(",")} - {"", "placement", "thing"}


def test_no_public_name_has_a_retired_word() -> None:
    public = {*settings(), *flags(build_parser()), *exported(), *metrics(), *SECTIONS}
    assert len(public) > 300
    assert {"application.site", "--force-claim", "lsb_joiner_failed_units", "LocalStreamBuffer"} <= public
    assert sorted(name for name in public if words_of(name) & STEMS) == []


def test_no_retired_name_is_used_in_the_code() -> None:
    # `Progress`: the counts that a service logs. `mark`: used by pytest.
    gone = {name for name in retired() if name.isidentifier()} - {"Progress", "mark"}
    assert len(gone) > 30
    assert {"placement", "Teller"} <= gone, "both tables are read"
    wrong = [
        f"{shown(path)}: {name}"
        for path in sources(*PACKAGES)
        for name in sorted(names_in(path) & gone - FORMER.get(shown(path), set()))
    ]
    assert wrong == []


def test_retired_words_are_used_where_old_names_are_accepted_and_nowhere_else() -> None:
    gone = {name for name in retired() if not name[0].isupper()} - {"mark", "Progress"}
    for path in sources(*(package for package in PACKAGES if package != "tests")):
        text = path.read_text(encoding="utf-8")
        found = {name for name in gone if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w.])", text)}
        assert found - FORMER.get(shown(path), set()) == set(), shown(path)


def test_no_page_uses_a_retired_word() -> None:
    gone = {name for name in retired() if not name[0].isupper()} - {"mark"}
    for page in (*ROOT.glob("*.md"), *DOCS.glob("*.md")):
        if page in (GLOSSARY, ROOT / "CHANGELOG.md", DOCS / "formats.md"):
            continue
        text = read(page).partition("## Deprecated names")[0].replace("`site`, `placement`", "")
        assert {name for name in gone if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w.])", text)} == set(), page.name


def test_the_states_of_a_unit_are_those_of_the_table() -> None:
    named = re.findall(r"\*(\w+)\*", read(GLOSSARY).partition("## States of a unit")[2].partition("\n## ")[0])
    assert named == [state.value for state in UnitState]
