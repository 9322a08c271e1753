"""Accepts settings under the names they had in the previous release, and logs a warning for each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


def with_present_names(given: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a settings section, with former names of settings replaced by the current ones.

    ``renamed`` maps each former name to the current one, both as ``section.field``. If a section contains both, the
    value under the current name is used.
    """
    values = dict(given)
    for former, present in renamed.items():
        old, new = former.rpartition(".")[2], present.rpartition(".")[2]
        if old not in values:
            continue
        value = values.pop(old)
        if new in values:
            log.warning("%s is ignored because %s is also given: remove the old name", former, present)
        else:
            values[new] = value
            log.warning("%s is now called %s; the next release will not accept the old name", former, present)
    return values
