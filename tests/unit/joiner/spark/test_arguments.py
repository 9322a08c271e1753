"""Does the page of the Spark operator list its arguments with their defaults, and no others?"""

from __future__ import annotations

import inspect

from joiner.spark import neighbour_join
from tests.unit.project.documents import DOCS, rows


def test_the_page_lists_every_argument_of_the_operator_with_its_default() -> None:
    documented = {
        name.strip(" `"): row.cells[1].strip("`")
        for row in rows(DOCS / "neighbour_join.md")
        if row.title == "argument"
        for name in row.cells[0].split(",")
    }
    parameters = inspect.signature(neighbour_join).parameters
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
