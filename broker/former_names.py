"""Accepts settings that have been renamed or removed since the previous release, and logs a warning for each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


def with_present_names(given: Mapping[str, Any], renamed: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a settings section's values, with former setting names replaced by current ones.

    ``renamed`` maps each former name to the current one, both as ``section.field``, or to None if the setting has been
    removed, in which case its value is dropped. If a section contains both names, the current name wins. Logs a warning
    for each former name.
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
