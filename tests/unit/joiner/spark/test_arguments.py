"""Do the pages of the Spark operators list their arguments with their defaults, and no others?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from joiner.spark import align, neighbour_join
from tests.unit.project.documents import DOCS, rows


@pytest.mark.parametrize(("page", "operator"), [("neighbour_join.md", neighbour_join), ("alignment.md", align)])
def test_the_page_lists_every_argument_of_the_operator_with_its_default(
    page: str, operator: Callable[..., Any]
) -> None:
    documented = {
        name.strip(" `"): row.cells[1].strip("`")
        for row in rows(DOCS / page)
        if row.title == "argument"
        for name in row.cells[0].split(",")
    }
    parameters = inspect.signature(operator).parameters
    assert list(documented) == list(parameters)
    empty = {inspect.Parameter.empty: "", None: None}
    for name, parameter in parameters.items():
        default = parameter.default
        if default is None:
            # The page describes it in prose, because the default depends on other arguments.
            assert documented[name] in {"none", "all columns", "spark.sql.shuffle.partitions"}
        else:
            shown = str(default).replace("'", '"') if isinstance(default, tuple) else f'"{default}"'
            assert documented[name] == empty.get(default, shown)
