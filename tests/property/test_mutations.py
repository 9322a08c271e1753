"""Can each mutation still be applied? `make mutations` checks that tests detect them, which takes minutes."""

from __future__ import annotations

import ast

import pytest

from tests.property.mutation import Mutation
from tests.property.mutations import MUTATIONS, ROOT, broken


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule.replace(" ", "-"))
def test_what_a_mutation_breaks_is_there_once_and_can_still_be_read_when_broken(mutation: Mutation) -> None:
    ast.parse(broken((ROOT / mutation.path).read_text(), mutation))
