"""The valid ranges of the connector's own settings."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from connector.settings import ConnectorSettings


@pytest.mark.parametrize(
    ("name", "shortest", "longest"),
    [("keep_alive", "1s", "65535s"), ("linger", "0", "1s"), ("idle_after", "100ms", "366d")],
)
def test_both_ends_of_a_range_belong_to_it(name: str, shortest: str, longest: str) -> None:
    for given in (shortest, longest):
        ConnectorSettings.model_validate({name: given})


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("keep_alive", "999999us", "must be from 1s to 65535s"),
        ("keep_alive", "65536s", "must be from 1s to 65535s"),
        ("linger", "1001ms", "must be from 0s to 1s"),
        ("idle_after", "99ms", "must be from 100ms to 366d"),
        ("idle_after", "367d", "must be from 100ms to 366d"),
    ],
)
def test_a_duration_outside_its_range_is_refused_with_both_ends(name: str, given: str, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        ConnectorSettings.model_validate({name: given})
