"""The house style as tests: import arrows, banned calls, sizes, and names that published text must not contain.

Each ban names an alternative. The tests parse the source and import nothing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]

OURS: Final = frozenset({"broker", "connector", "control", "db_connector", "demo", "joiner", "simulator"})

MAY_IMPORT: Final = {
    # The project's packages that each package may import, besides itself.
    "broker": frozenset(),
    "simulator": frozenset({"broker"}),
    "connector": frozenset({"broker"}),
    "db_connector": frozenset({"broker"}),
    "joiner": frozenset({"broker"}),
    "control": frozenset({"broker", "joiner"}),
    "demo": OURS,
}

ALSO: Final = {
    # Single modules that a package may import besides, each with the reason.
    "simulator": {
        "connector.formats.events": "`lsb-import` tries the first lines of a file before it writes any",
        "connector.forwarding": "`lsb-import` writes to Kafka what the connector would write",
        "connector.settings": "`lsb-import` has the settings of the connector",
    },
    "joiner": {
        # By the command `lsb-init` alone, which reads MQTT messages as the connector would.
        "connector.formats.contents": "what the parsers share",
        "connector.formats.events": "the parser of messages that no template matches",
        "connector.formats.messages": "the parsers of all formats",
        "connector.templates": "the templates that are proposed",
    },
    "control": {
        "connector.settings": "it shows what is before an application, as it is configured",
        "db_connector.settings": "it shows what is behind an application, as it is configured",
    },
}

CORE_MAY_NOT_IMPORT: Final = {
    # The join core computes from its arguments alone; everything else belongs in joiner/runtime.
    "time": "records carry their event time",
    "datetime": "time is int64 nanoseconds",
    "logging": "return what happened, joiner/runtime logs it",
    "random": "the same input gives the same output",
    "secrets": "the same input gives the same output",
    "threading": "the core is called from one thread",
    "multiprocessing": "the core is called from one process",
    "asyncio": "the core never waits",
    "os": "the core does not access the machine",
    "socket": "the core does not access the network",
    "subprocess": "the core starts no processes",
    "pathlib": "the core does not access files",
    "io": "snapshots are bytes",
}

KNOWS_THE_TIME: Final = {
    # The modules in joiner/runtime and joiner/cli that may import `time`; all others get a `Clock`.
    "joiner/runtime/clock.py": "it is the clock",
}

FILE_LINES_MAX: Final = 450


class Import(NamedTuple):
    """An imported module by its absolute name, with the file and line of the import."""

    file: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line} imports {self.module}"


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def parsed_with(words: Iterable[str], paths: Iterable[Path]) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the files that contain one of the words. To parse all files takes seconds."""
    any_word = re.compile(rf"\b({'|'.join(words)})\b")
    for path in paths:
        if any_word.search(path.read_text(encoding="utf-8")):
            yield path, parse(path)


@cache
def imports(path: Path) -> list[Import]:
    return [*_imports(path)]


def _imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                package = path.relative_to(ROOT).with_suffix("").parts[: -node.level]
                module = ".".join((*package, module)).rstrip(".")
            yield Import(path, node.lineno, module)
            # ``from package import module`` also imports a module.
            for alias in node.names:
                yield Import(path, node.lineno, f"{module}.{alias.name}")


def top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_its_arrows_allow(folder: str) -> None:
    allowed, also = MAY_IMPORT[folder] | {folder}, tuple(ALSO.get(folder, ()))
    found = [one for path in sources(folder) for one in imports(path) if top(one.module) in OURS]
    wrong = [str(one) for one in found if top(one.module) not in allowed and not one.module.startswith(also)]
    assert wrong == []
    assert [name for name in also if not any(one.module == name for one in found)] == [], "these are not needed"


PURE: Final = {
    # The packages that compute from their arguments alone, and the packages of the project that each may import.
    "joiner/core": ("joiner.core",),
    "joiner/alignment": ("joiner.core", "joiner.alignment"),
}


@pytest.mark.parametrize("package", PURE)
def test_the_core_imports_numpy_numba_and_the_standard_library_alone(package: str) -> None:
    allowed = sys.stdlib_module_names | {"numpy", "numba", "__future__"}
    wrong = [
        str(found)
        for path in sources(package)
        for found in imports(path)
        if top(found.module) not in allowed and not found.module.startswith(PURE[package])
    ]
    assert wrong == []


def test_the_core_knows_no_clock_no_chance_and_no_machine() -> None:
    wrong = [
        f"{found}: {CORE_MAY_NOT_IMPORT[top(found.module)]}"
        for path in sources(*PURE)
        for found in imports(path)
        if top(found.module) in CORE_MAY_NOT_IMPORT
    ]
    assert wrong == []


def test_the_protocol_of_moves_knows_no_kafka_and_no_clock() -> None:
    banned = {*CORE_MAY_NOT_IMPORT, "confluent_kafka"}
    for name in ("protocol", "order"):
        path = ROOT / "joiner" / "runtime" / "migration" / f"{name}.py"
        assert [str(found) for found in imports(path) if top(found.module) in banned] == []


def test_the_union_of_replicas_knows_no_kafka_and_no_clock() -> None:
    banned = {*CORE_MAY_NOT_IMPORT, "confluent_kafka"}
    for name in ("protocol", "memory", "vectors"):
        path = ROOT / "joiner" / "library" / "merging" / f"{name}.py"
        assert [str(found) for found in imports(path) if top(found.module) in banned] == []


def test_the_runtime_is_given_its_clock() -> None:
    """Tests can therefore supply another one: `tests/manual_clock.py`, `tests/simulation/clock.py`."""
    found = {
        shown(path)
        for path in sources("joiner/runtime", "joiner/cli")
        for imported in imports(path)
        if imported.module == "time"
    }
    assert found == set(KNOWS_THE_TIME)


def test_the_operator_in_spark_imports_the_core_alone() -> None:
    # It must work from a zip of joiner/.
    allowed = sys.stdlib_module_names | {"numpy", "numba", "pandas", "pyarrow", "pyspark", "__future__"}
    pure = ("joiner.core", "joiner.alignment", "joiner.library")
    without_spark = {
        "joiner/spark/reordering",
        "joiner/spark/rows",
        "joiner/spark/joining/reordered_join",
        "joiner/spark/aligning/rules",
        "joiner/spark/aligning/whole",
        "joiner/spark/aligning/reordered_align",
    }
    assert without_spark <= {shown(path.with_suffix("")) for path in sources("joiner/spark")}
    wrong = [
        str(found)
        for path in sources("joiner/spark")
        for found in imports(path)
        if not (top(found.module) in allowed or found.module.startswith((*pure, "joiner.spark")))
        or (top(found.module) == "pyspark" and shown(path.with_suffix("")) in without_spark)
    ]
    assert wrong == []


def test_the_checker_imports_nothing_of_the_core_it_judges() -> None:
    wrong = [
        str(found)
        for path in [*sources("joiner/check"), *(ROOT / "joiner").glob("tester.py")]
        for found in imports(path)
        if found.module.startswith(("joiner.core", "joiner.alignment"))
    ]
    assert wrong == []


def calls_outside_loops(node: ast.AST, names: frozenset[str]) -> Iterator[ast.Call]:
    """Yield the calls of ``names`` outside of a ``while``: a pause in a polling loop is fine."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.While):
            continue
        if isinstance(child, ast.Call) and ast.unparse(child.func) in names:
            yield child
        yield from calls_outside_loops(child, names)


def test_no_test_sleeps_and_hopes() -> None:
    names = frozenset({"time.sleep", "sleep", "asyncio.sleep"})
    wrong = [
        f"{shown(path)}:{call.lineno} sleeps: wait in a loop for a condition, with a deadline"
        for path, tree in parsed_with(["sleep"], sources("tests"))
        for call in calls_outside_loops(tree, names)
    ]
    assert wrong == []


def test_no_shell_is_asked_to_run_a_string() -> None:
    banned = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "eval", "exec"}
    wrong = [
        f"{shown(path)}:{node.lineno} calls {ast.unparse(node.func)}: start a process from a list of arguments"
        for path, tree in parsed_with([name.rpartition(".")[2] for name in banned], sources(*sorted(OURS), "tests"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in banned
    ]
    assert wrong == []


def test_no_service_sends_a_request_that_can_abort_it() -> None:
    """`broker.kafka.groups` says why, and what to send instead.

    Nothing can be sent instead of the deletion of a group. Only `joiner reset` deletes one, and can be repeated.
    """
    excepted = {("joiner/runtime/repartition/deletion.py", "delete_consumer_groups")}
    banned = {
        "describe_consumer_groups",
        "list_consumer_group_offsets",
        "alter_consumer_group_offsets",
        "delete_consumer_groups",
    }
    wrong = [
        f"{shown(path)}:{node.lineno} uses {node.attr}"
        for path, tree in parsed_with(banned, sources(*sorted(OURS)))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in banned and (shown(path), node.attr) not in excepted
    ]
    assert wrong == []


def test_files_are_short() -> None:
    wrong = [
        f"{shown(path)} has {lines} lines, {FILE_LINES_MAX} are allowed: split it by responsibility"
        for path in sources(*sorted(OURS), "tests")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    ]
    assert wrong == []


def test_every_module_says_what_it_is() -> None:
    wrong = [
        f"{shown(path)} has no docstring"
        for path in sources(*sorted(OURS), "tests")
        if (text := path.read_text(encoding="utf-8").strip())
        and not text.startswith('"""')
        and ast.get_docstring(parse(path)) is None
    ]
    assert wrong == []


def test_no_module_is_named_after_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
    assert [shown(path) for path in sources(*sorted(OURS), "tests") if path.stem in empty] == []


def published() -> list[Path]:
    """Return all published text files of the project, without generated ones."""
    patterns = ("*.md", "*.toml", "docs/**/*.md", "requirements/*", ".ci/*", "Makefile")
    texts = [path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()]
    return sorted({*texts, *sources(*sorted(OURS), "tests")})


# Concatenated, so that this file does not contain the strings that it bans.
MACHINE_PATHS: Final = re.compile("|".join(["/" + "root/", "/" + "work/", "/" + r"home/\w", "/" + r"tmp/\w"]))
REGISTRY_HOSTS: Final = re.compile(
    "|".join(["pypi" + r"\.org", "python" + r"hosted\.org", "maven" + r"\.org", "proxy" + r"\.golang", "npm" + "js"])
)


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{shown(path)}:{number} {line.strip()[:80]}"
        for path in published()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_published_text_names_no_path_of_one_machine() -> None:
    assert lines_with(MACHINE_PATHS) == []


def test_published_text_names_no_registry_host() -> None:
    assert lines_with(REGISTRY_HOSTS) == []


def test_every_locked_package_has_hashes_and_a_fixed_version() -> None:
    for name in ("library.txt", "services.txt", "control.txt", "arrow.txt", "spark.txt", "dev.txt"):
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8").replace("\\\n", " ")
        entries = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
        assert entries
        assert [entry for entry in entries if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:", entry)] == []


def test_every_direct_dependency_gives_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tables = text.partition("\ndependencies = [\n")[2].partition("\n[project.scripts]\n")[0]
    in_pyproject = re.findall(r'^    ("(?!localstreambuffer\[).*)', tables, re.MULTILINE)
    in_dev = [
        line
        for line in (ROOT / "requirements" / "dev.in").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith(("#", "-r"))
    ]
    assert len(in_pyproject) > 10
    assert len(in_dev) > 5
    assert [line for line in in_pyproject + in_dev if not re.search(r"# \w", line)] == []
