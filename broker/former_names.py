"""Accepts settings of the previous release that have since been renamed or removed, with a warning for each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


def with_present_names(given: Mapping[str, Any], renamed: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the values of a settings section, with former names of settings replaced by the current ones.

    ``renamed`` maps each former name to the current one, both as ``section.field``, or to None if the setting no longer
    exists; its value is then left out. If a section contains both names, the value under the current name is used. A
    warning is logged for each former name.
    """
    values = dict(given)
    for former, present in renamed.items():
        old = former.rpartition(".")[2]
        if old not in values:
            continue
        value = values.pop(old)
        if present is None:
            log.warning("%s no longer has any effect: remove it, because the next release will not accept it", former)
            continue
        new = present.rpartition(".")[2]
        if new in values:
            log.warning("%s is ignored because %s is also given: remove the old name", former, present)
        else:
            values[new] = value
            log.warning("%s is now called %s; the next release will not accept the old name", former, present)
    return values
