"""The structure of the project: acyclic, layered imports, few modules per package, small classes and functions."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.unit.project.test_import_arrows import OURS, ROOT, imports, parse, parsed_with, shown, sources, top

PACKAGES: Final = sorted({*OURS, "bench", "grafana"})

SIDE_BY_SIDE_MAX: Final = 12
LAYERS_MAX: Final = 6

CLASS_LINES_MAX: Final = 250
FUNCTION_LINES_MAX: Final = 60
"""So that a function fits on one screen."""
PARAMETERS_MAX: Final = 8
"""Not counting ``self``."""

LARGE: Final = {
    # Classes and functions that exceed these limits, each with the reason.
    "joiner/library/join.py join": "a public operator: most of it is the documentation of its arguments",
    "joiner/spark/aligning/frames.py align": "a public operator: most of it documents its arguments",
    "joiner/spark/joining/frames.py neighbour_join": "a public operator: most of it documents its arguments",
}

MANY_PARAMETERS: Final = {
    # Functions with more parameters, each with the reason.
    "joiner/alignment/tables.py _interpolate": "a compiled loop: its arguments are arrays",
    "joiner/core/frontier.py _advance": "a compiled loop: its arguments are arrays",
    "joiner/library/join.py join": "a public operator: each is an option of its own",
    "joiner/spark/joining/frames.py neighbour_join": "a public operator: each is an option of its own",
    "tests/property/test_amplification.py test_bytes_to_kafka_are_linear_in_bytes_from_mqtt": "Hypothesis draws each",
}

RUNTIME: Final = ("task", "kafka", "repartition", "ownership", "membership", "migration", "telemetry", "runners")
"""Each may import those before it, except that `telemetry` may not import `migration`."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> Mapping[str, Path]:
    """Return the files of the project's modules."""
    return {name_of(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


@cache
def graph() -> Mapping[str, frozenset[str]]:
    """Return the project modules that each module imports, including imports for type checking alone."""
    paths, found = modules(), {}
    for name, path in paths.items():
        given = {imported.module for imported in imports(path)}
        # ``from package import module`` yields both names, but only the module counts. `reached_from` adds the imports
        # of the package's ``__init__.py``.
        known = {module for module in given if module in paths and module != name}
        packages = {module for module in known if any(other.startswith(f"{module}.") for other in known)}
        found[name] = frozenset(known - packages)
    return found


def circles(arrows: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return each import cycle, once."""
    done: set[str] = set()
    found: list[list[str]] = []

    def walk(name: str, way: list[str]) -> None:
        if name in way:
            found.append([*way[way.index(name) :], name])
        elif name not in done:
            for other in sorted(arrows[name]):
                walk(other, [*way, name])
            done.add(name)

    for name in sorted(arrows):
        walk(name, [])
    return found


def reached_from(name: str) -> set[str]:
    """Return all modules that importing ``name`` imports, including itself."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            # Importing a module imports its parent packages.
            parents = {".".join(one.split(".")[:depth]) for depth in range(1, one.count(".") + 1)}
            todo += [other for other in (graph()[one] | parents) if other in graph()]
    return seen


def folders() -> list[str]:
    """Return every package that contains modules."""
    # Not from `graph`, because each test process calls this.
    return sorted({name.rpartition(".")[0] for name in modules() if "." in name})


def inside(folder: str) -> dict[str, frozenset[str]]:
    """Return the imports between the direct children of a package; a subpackage counts as one."""

    def child_of(name: str) -> str | None:
        rest = name.removeprefix(f"{folder}.")
        return None if rest == name else rest.partition(".")[0]

    arrows: dict[str, set[str]] = {}
    for name, given in graph().items():
        if (child := child_of(name)) is not None:
            others = {child_of(other) for other in given} - {None, child}
            arrows.setdefault(child, set()).update(other for other in others if other is not None)
    return {child: frozenset(others) for child, others in arrows.items()}


def depth_of(arrows: Mapping[str, frozenset[str]]) -> int:
    @cache
    def depth(name: str) -> int:
        return 1 + max(map(depth, arrows[name]), default=0)

    return max(map(depth, arrows))


def test_no_file_imports_itself_in_a_circle() -> None:
    assert circles(graph()) == []


@pytest.mark.parametrize("folder", folders())
def test_a_package_is_flat_enough_to_be_seen_at_once(folder: str) -> None:
    arrows = inside(folder)
    assert circles(arrows) == []
    assert len(arrows) <= SIDE_BY_SIDE_MAX, f"{folder} has {len(arrows)} modules side by side: group them"
    assert depth_of(arrows) <= LAYERS_MAX, f"{folder} has {depth_of(arrows)} layers"


def test_the_runtime_s_packages_import_downwards() -> None:
    arrows = inside("joiner.runtime")
    for place, package in enumerate(RUNTIME):
        assert arrows[package] & set(RUNTIME) <= set(RUNTIME[:place])
    assert "migration" not in arrows["telemetry"]


def test_a_task_reaches_no_kafka_not_even_through_others() -> None:
    for name in sorted(graph()):
        if not name.startswith(("joiner.runtime.task", "joiner.runtime.migration.protocol")):
            continue
        for module in sorted(reached_from(name)):
            path = ROOT / Path(*module.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            clients = [str(found) for found in imports(file) if top(found.module) in {"confluent_kafka", "paho"}]
            assert clients == [], f"{name} reaches {module}"


class Definition(NamedTuple):
    """A class or function, named with its file. A class counts as having no parameters."""

    name: str
    is_class: bool
    lines: int
    parameters: int


@cache
def definitions() -> list[Definition]:
    return [
        Definition(
            f"{shown(path)} {node.name}",
            isinstance(node, ast.ClassDef),
            (node.end_lineno or node.lineno) - node.lineno + 1,
            0 if isinstance(node, ast.ClassDef) else parameters_of(node.args),
        )
        for path in sources(*PACKAGES, "tests")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def parameters_of(given: ast.arguments) -> int:
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_classes_and_functions_are_small() -> None:
    large = {one.name for one in definitions() if one.lines > (CLASS_LINES_MAX if one.is_class else FUNCTION_LINES_MAX)}
    assert large - LARGE.keys() == set(), "extract the missing object or step, or give the reason"
    assert LARGE.keys() - large == set(), "these are small enough now"


def test_functions_have_few_parameters() -> None:
    many = {one.name for one in definitions() if one.parameters > PARAMETERS_MAX}
    assert many - MANY_PARAMETERS.keys() == set(), "group parameters into an object, or give the reason"
    assert MANY_PARAMETERS.keys() - many == set(), "these have few enough now"


def test_circles_are_found() -> None:
    arrows = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"b"}), "d": frozenset({"a"})}
    assert circles(arrows) == [["b", "c", "b"]]
    assert circles({**arrows, "c": frozenset()}) == []
    assert depth_of({**arrows, "c": frozenset()}) == 4


EXAMINED: Final = {
    "control/page/forms.py": "converts to the types of orders, for which `control.actions.orders` makes a decoder",
}


def test_types_are_examined_at_import_and_not_by_several_threads_at_once() -> None:
    """The library msgspec examines a type at its first use. Two threads that do so at once may crash the process."""
    found = []
    for package in OURS:
        for path, tree in parsed_with(["msgspec"], sources(package)):
            inner = {id(call) for function in ast.walk(tree) if _is_function(function) for call in ast.walk(function)}
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                name = ast.unparse(call.func)
                has_type = any(keyword.arg == "type" for keyword in call.keywords) or len(call.args) > 1
                is_late = name.endswith("Decoder") and name.startswith("msgspec.") and id(call) in inner
                decodes = name.startswith("msgspec.") and name.endswith((".decode", ".convert")) and has_type
                if (decodes or is_late) and shown(path) not in EXAMINED:
                    found.append(f"{shown(path)}:{call.lineno}: make a decoder at module level instead of {name}")
    assert not found


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
