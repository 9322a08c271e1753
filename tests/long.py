"""Marks parameters of tests that take long."""

from __future__ import annotations

from typing import Any

import pytest


def rest_long(first: Any, *rest: Any) -> list[Any]:
    """Return parameters of which `make test` uses only the first one, and `make test-chaos` all."""
    return [first, *(pytest.param(one, marks=pytest.mark.long) for one in rest)]
