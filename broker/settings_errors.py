"""What is told about settings that were refused: a line for each, with what, where and what to do.

Knows the names of variables and the errors of pydantic, no setting by itself but those that are secrets: a
value that is or might hold one is never shown. Nothing is raised here; `broker.settings` gathers the lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

_SECRETS: Final = frozenset({"token", "password", "client"})
"""Settings whose values are never shown."""

_WANTED: Final = {
    # Instead of what pydantic says, which is for programmers.
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "list_type": "must be a list",
    "missing": "is missing",
    "extra_forbidden": "is no setting: correct its name, or take it out",
}
_IN_JSON: Final = frozenset({"model_type", "dict_type", "list_type"})


def mistake_of(found: Any, path: Path) -> str:
    """The line for one of pydantic's errors (``ErrorDetails``) in settings of the file ``path``."""
    place, kind = found["loc"], found["type"]
    message = _WANTED.get(kind, found["msg"].removeprefix("Value error, "))
    if not place:
        return f"{path}: {message}"
    # An element of a list has no variable of its own, the whole list has; so has what a table holds.
    named = list(takewhile(lambda part: isinstance(part, str), place))[:2]
    where_to_mend = way_out(named, may_be_set=kind != "extra_forbidden")
    as_json = " (in a variable: as JSON)" if kind in _IN_JSON else ""
    line = f"{path}: {'.'.join(map(str, place))}: {message}{_shown(found)}"
    return f"{line}; {where_to_mend}{as_json}" if where_to_mend else line


def way_out(named: list[str], *, may_be_set: bool = True) -> str:
    """Where to mend the setting ``named`` (section, field): in the variable that gives it, where one does.

    Empty where none does and none may (``may_be_set``).
    """
    variable = "LSB_" + "__".join(named).upper()
    whole_section = f"LSB_{named[0].upper()}"
    for name in _variables():
        if name in {variable, whole_section} or name.startswith(f"{variable}__"):
            return f"it comes from {name}, which goes before the file"
    return f"set it there or in {variable}" if may_be_set else ""


def unknown_variables(sections: Collection[str]) -> list[str]:
    """A line for each variable of an unknown section.

    Those without two underscores are no settings (``LSB_CACHE``) or whole sections (``LSB_JOIN``).
    """
    mistakes = []
    for variable in _variables():
        section, delimiter, _field = variable.removeprefix("LSB_").lower().partition("__")
        if delimiter and section not in sections:
            mistakes.append(f"environment: {variable}: {no_section(section, sections)}")
    return mistakes


def no_section(name: str, sections: Collection[str]) -> str:
    """What to say about a section that does not exist."""
    return f"[{name}] is no section; there are {', '.join(sorted(sections))}"


def _variables() -> list[str]:
    """The project's variables that are set, in capitals: they are found in any case."""
    return sorted(name.upper() for name, value in os.environ.items() if value and name.upper().startswith("LSB_"))


def _shown(found: Any) -> str:
    """The value that was refused, where it can be no secret: a table may hold one, an unknown name mean one."""
    place, value = found["loc"], found["input"]
    secret = len(place) == 1 or _SECRETS & set(place) or found["type"] in {"missing", "extra_forbidden"}
    if secret or not isinstance(value, str | int | float):
        return ""
    # A URL might hold a password.
    return f" (given: {re.sub('//[^/]*@', '//...@', str(value))[:80]!r})"
