"""Accepts settings under the names of the previous release, for one release and with a warning."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


def with_present_names(given: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a section, keyed by the current names of its settings.

    ``renamed`` maps former names to current ones (both ``section.field``). If both are given, the current one wins.
    """
    values = dict(given)
    for former, present in renamed.items():
        old, new = former.rpartition(".")[2], present.rpartition(".")[2]
        if old not in values:
            continue
        value = values.pop(old)
        if new in values:
            log.warning("%s is ignored, as %s is given too: remove the old name", former, present)
        else:
            values[new] = value
            log.warning("%s is now called %s; the next release does not accept the old name", former, present)
    return values
