"""Are a user's joining functions found, and are their mistakes reported with file and line?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.settings import SettingsError
from joiner.functions import BUILT_IN, load_function, load_functions, load_row_function


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which is not on the Python path. Modules imported from it are removed afterwards."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in sys.modules.keys() - known:
        if name.endswith("_join"):
            del sys.modules[name]


def refusal(functions: dict[str, str]) -> str:
    with pytest.raises(SettingsError) as refused:
        load_functions(functions)
    return str(refused.value)


def test_a_module_in_the_current_folder_is_found(folder: Path) -> None:
    (folder / "own_join.py").write_text("def f(left, right):\n    return left.result\n", encoding="utf-8")
    loaded = load_functions({"one": "own_join:f", "two": "product"})
    assert loaded["one"].__module__ == "own_join"
    assert loaded["two"] is BUILT_IN["product"]


def test_an_error_in_the_function_of_an_align_does_not_speak_of_a_joining_function() -> None:
    with pytest.raises(ValueError, match=r"^the function 'no_such_join:f' cannot be loaded"):
        load_row_function("no_such_join:f")


def test_a_file_in_the_current_folder_goes_before_no_library(folder: Path) -> None:
    (folder / "string.py").write_text("raise RuntimeError\n", encoding="utf-8")
    load_functions({"one": "product"})
    assert sys.path[-1] == str(folder)
    load_functions({"one": "product"})
    assert sys.path.count(str(folder)) == 1


@pytest.mark.parametrize(
    ("program", "line", "reason"),
    [
        ("x = 1\ndef f(:\n", 2, "SyntaxError: invalid syntax"),
        ("\n\nx = 1 / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("import no_such_library\n", 1, "ModuleNotFoundError: No module named 'no_such_library'"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("\nimport json\njson.loads('{')\n", 3, "JSONDecodeError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_file_and_line(
    folder: Path, program: str, line: int, reason: str
) -> None:
    file = folder / "broken_join.py"
    file.write_text(program, encoding="utf-8")
    message = refusal({"power": "broken_join:f"})
    assert message.startswith("join 'power': the joining function 'broken_join:f' cannot be loaded: ")
    assert f"{file} line {line}: {reason}" in message
    assert "correct it there" in message


def test_a_module_that_is_no_text_is_told(folder: Path) -> None:
    (folder / "binary_join.py").write_bytes(b"\0")
    assert "null bytes" in refusal({"one": "binary_join:f"})


def test_a_name_that_is_not_in_the_module_is_told_with_its_file(folder: Path) -> None:
    (folder / "empty_join.py").write_text("", encoding="utf-8")
    assert f"{folder / 'empty_join.py'} does not define 'f'" in refusal({"one": "empty_join:f"})


def test_a_module_that_is_not_there_is_told_with_where_it_was_looked_for(folder: Path) -> None:
    assert f"there is no module 'nowhere' in {folder}" in refusal({"one": "nowhere:f"})


def test_a_relative_name_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"'\.mod' is a relative name; use the absolute name"):
        load_function(".mod:f")


@pytest.mark.usefixtures("folder")
def test_all_mistakes_are_told_together() -> None:
    message = refusal({"one": "nowhere:f", "two": "product", "three": "nothing"})
    assert [line.split(":")[0] for line in message.splitlines()] == ["join 'one'", "join 'three'"]
