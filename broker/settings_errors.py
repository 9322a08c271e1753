"""Formats the error lines for invalid settings. Each line says what is wrong, where, and what to do about it.

The lines are built from pydantic's errors and from the names of environment variables. Values that are or
may contain secrets are never shown, so this module knows the secret settings by name, but no others. It does not raise
errors itself; `broker.settings` collects the lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from broker.commandline import describe_missing

_SECRETS: Final = frozenset({"token", "password", "client"})
"""Settings whose values are never shown."""

_MESSAGES: Final = {
    # Keyed by pydantic's error type. These messages replace pydantic's own, which are written for programmers.
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "list_type": "must be a list",
    "missing": "is missing",
    "extra_forbidden": "is not a known setting: correct the name, or remove it",
}
_IN_JSON: Final = frozenset({"model_type", "dict_type", "list_type"})


def error_line(found: Any, path: Path) -> str:
    """Return the error line for one of pydantic's errors (``ErrorDetails``) in the settings file ``path``."""
    place, kind = found["loc"], found["type"]
    message = _MESSAGES.get(kind, found["msg"].removeprefix("Value error, "))
    if not place:
        return f"{path}: {message}"
    # Environment variables can set a whole list or table, but not a single element of it.
    named = list(takewhile(lambda part: isinstance(part, str), place))[:2]
    remedy = remedy_of(named, may_be_set=kind != "extra_forbidden")
    as_json = " (in a variable: as JSON)" if kind in _IN_JSON else ""
    line = f"{path}: {'.'.join(map(str, place))}: {message}{_shown(found)}"
    return f"{line}; {remedy}{as_json}" if remedy else line


def remedy_of(named: list[str], *, may_be_set: bool = True) -> str:
    """Return text that says where to correct the setting ``named`` (section, field).

    The text names the environment variable that sets it. If no variable does, the text refers to the settings file and
    to the variable that could set it; it is empty if the setting does not exist (``may_be_set`` is false).
    """
    variable = "LSB_" + "__".join(named).upper()
    whole_section = f"LSB_{named[0].upper()}"
    for name in _variables():
        if name in {variable, whole_section} or name.startswith(f"{variable}__"):
            return f"it comes from {name}, which overrides the file"
    return f"set it there or in {variable}" if may_be_set else ""


def unknown_variables(sections: Collection[str]) -> list[str]:
    """Return an error line for each environment variable that sets a field of an unknown section.

    Variables without a double underscore are skipped: they set a whole section (``LSB_JOIN``), or are not settings
    (``LSB_CACHE``).
    """
    errors = []
    for variable in _variables():
        section, delimiter, _field = variable.removeprefix("LSB_").lower().partition("__")
        if delimiter and section not in sections:
            errors.append(f"environment: {variable}: {no_section(section, sections)}")
    return errors


def no_section(name: str, sections: Collection[str]) -> str:
    """Return the error message for an unknown section ``name``, which lists the ``sections`` that exist."""
    return f"[{name}] is not a section; the sections are {', '.join(sorted(sections))}"


def _variables() -> list[str]:
    """Return the names of the project's non-empty environment variables, uppercased and sorted."""
    return sorted(name.upper() for name, value in os.environ.items() if value and name.upper().startswith("LSB_"))


def _shown(found: Any) -> str:
    """Return the rejected value as text to append to a message.

    Return an empty string if it is not a string or a number, or if it may be secret: a whole section, or the value of
    an unknown setting, may contain a secret.
    """
    place, value = found["loc"], found["input"]
    secret = len(place) == 1 or _SECRETS & set(place) or found["type"] in {"missing", "extra_forbidden"}
    if secret or not isinstance(value, str | int | float):
        return ""
    # A URL may contain a password.
    return f" (given: {re.sub('//[^/]*@', '//...@', str(value))[:80]!r})"


PACKAGES: Final = {"arrow": "pyarrow", "protobuf": "grpc_tools"}
"""By extra, for those that settings can require: a package from it, by its import name."""


def lacking_extras(path: Path, needed: Mapping[str, str] | None) -> list[str]:
    """Return an error line for each extra that is not installed. ``needed``: see `ServiceSettings.needs_extras`."""
    return [
        f"{path}: {setting}: {describe_missing(PACKAGES[extra], extra)}"
        for extra, setting in (needed or {}).items()
        if find_spec(PACKAGES[extra]) is None
    ]
