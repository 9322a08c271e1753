"""Is any request answered as the description of the interface says, whatever it contains and whoever sends it?

Schemathesis makes requests that the description allows and others that it forbids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from control.actions import tasks
from control.actions.perform import Outcome
from tests.unit.control.served import Served

EXAMPLES = 15

served = Served()
schema = schemathesis.openapi.from_asgi(
    "/api/v1/openapi.json", served.guarded, headers={"Authorization": "Bearer ada-token", "Host": "localhost"}
)


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_performed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "perform", lambda *_: Outcome("done", "of a test"))
        for desk in served.desks.values():
            desk.start()
        yield
        for desk in served.desks.values():
            desk.stop()
            desk.join(5.0)


def answered_as_described(case: schemathesis.Case[Any], token: str) -> None:
    """Send a request, and a few changed ones. Raises an error if an answer is not as the description says."""
    # Whoever fails to log in too often in a while is refused with another status.
    served.clock.now_s += 3_600
    case.call_and_validate(headers={"Authorization": f"Bearer {token}", "Host": "localhost"})


@schema.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_requests_of_an_admin(case: schemathesis.Case[Any]) -> None:
    answered_as_described(case, "ada-token")


@schema.include(method="POST", path_regex="actions").parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_requests_of_a_viewer_change_nothing(case: schemathesis.Case[Any]) -> None:
    before = len(served.topic.values)
    answered_as_described(case, "vera-token")
    assert len(served.topic.values) == before
