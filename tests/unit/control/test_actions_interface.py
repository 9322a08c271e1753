"""Can orders be given over HTTP by those who may, once each, and is everybody else refused with a reason?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from control.actions import tasks as tasks_module
from control.actions.perform import Outcome
from tests.integration.services import wait_until
from tests.unit.control.audited import facts_of, settings_of
from tests.unit.control.served import Served

ACTIONS: Final = "/api/v1/applications/lsb/actions"
MOVE: Final = {"kind": "move", "to": "spark", "epochs": {"process": 3}}
PUT_BACK: Final = {"kind": "putback", "dead_letters": [[0, 1]], "value": "a secret"}
WATERMARK: Final = {"kind": "watermark", "time": 5, "thing": "R0815"}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(tasks_module, "perform", lambda *_: Outcome("done", "all units are at spark"))
    made = Served()
    made.watchers["lsb"].facts = facts_of()
    made.watchers["lsb"].settings = settings_of()
    made.desks["lsb"].start()
    wait_until(lambda: made.desks["lsb"].trouble == "", "the audit topic has been read")
    yield made
    made.desks["lsb"].stop()
    made.desks["lsb"].join(10)


def order(served: Served, user: str, body: Any, key: str | None = "k1", **query: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return served.client(f"{user}-token").post(ACTIONS, json=body, headers=headers, params=query)


def test_an_order_is_accepted_and_its_outcome_is_told(served: Served) -> None:
    response = order(served, "otto", MOVE)
    assert response.status_code == 202
    action = response.json()
    assert (action["by"], action["order"]["to"]) == ("otto", "spark")
    client = served.client("vera-token")
    wait_until(lambda: client.get(response.headers["Location"]).json()["state"] == "done", "it is done")
    listed = client.get(ACTIONS).json()
    assert [(one["id"], one["text"]) for one in listed["actions"]] == [(action["id"], "all units are at spark")]
    assert (listed["refusals"], listed["trouble"]) == ([], "")


def test_the_same_request_again_is_answered_with_the_same_action(served: Served) -> None:
    first, again = order(served, "otto", MOVE), order(served, "otto", MOVE)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    other = order(served, "otto", MOVE | {"units": [0]})
    assert (other.status_code, other.json()["detail"]) == (
        422,
        "this idempotency key belongs to another order; use a new one",
    )


def test_a_dry_run_changes_nothing_and_needs_no_key(served: Served) -> None:
    response = order(served, "otto", MOVE, key=None, dry_run=True)
    assert response.status_code == 200
    assert "Move units 0, 1 to the site spark" in response.json()["would"][0]
    assert served.topic.records() == []
    refused = order(served, "otto", MOVE | {"to": "green"}, key=None, dry_run=True)
    assert (refused.status_code, served.topic.records()) == (409, [])


@pytest.mark.parametrize(
    ("user", "body", "status"),
    [
        ("vera", MOVE, 403),
        ("vera", WATERMARK, 403),
        ("vera", {"kind": "nonsense"}, 403),
        ("otto", WATERMARK, 403),
        ("otto", PUT_BACK, 403),
        ("ada", WATERMARK, 202),
        ("ada", MOVE, 202),
    ],
)
def test_each_order_needs_its_role(served: Served, user: str, body: Any, status: int) -> None:
    for dry_run in (True, False):
        response = order(served, user, body, dry_run=dry_run)
        assert response.status_code == (200 if dry_run and status == 202 else status)
        if status == 403:
            assert "this needs the role" in response.json()["detail"]
    assert (served.topic.records() == []) == (status == 403)


@pytest.mark.parametrize(
    ("body", "key", "media_type", "status", "reason"),
    [
        (b"{}", "k", "application/json", 422, "not a valid order: "),
        (b"", "k", "application/json", 422, "not a valid order: "),
        (b"\xff", "k", "application/json", 422, "not a valid order: "),
        (b"[" * 60_000, "k", "application/json", 422, "not a valid order: "),
        (b'{"kind":"move","to":"spark","epochs":{}}', None, "application/json", 400, "Idempotency-Key"),
        (b'{"kind":"move","to":"spark","epochs":{}}', "k" * 201, "application/json", 422, "Idempotency-Key"),
        (b'{"kind":"move","to":"spark","epochs":{}}', "k", "text/plain", 415, "application/json"),
        (b'{"kind":"move","to":"green","epochs":{}}', "k", "application/json", 409, "no instance runs at the site"),
        (
            b'{"kind":"move","to":"spark","epochs":{"process":1}}',
            "k",
            "application/json",
            409,
            "has been replaced by 3",
        ),
    ],
)
def test_what_cannot_be_accepted_is_refused_with_a_reason(
    served: Served, body: bytes, key: str | None, media_type: str, status: int, reason: str
) -> None:
    headers = {"Content-Type": media_type} | ({} if key is None else {"Idempotency-Key": key})
    response = served.client("otto-token").post(ACTIONS, content=body, headers=headers)
    assert (response.status_code, reason in response.json()["detail"]) == (status, True), response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    assert served.desks["lsb"].actions() == []


def test_nobody_is_shown_the_contents_that_somebody_has_corrected(served: Served) -> None:
    action = order(served, "ada", PUT_BACK).json()
    client = served.client("vera-token")
    for response in (client.get(ACTIONS), client.get(f"{ACTIONS}/{action['id']}")):
        assert response.status_code == 200
        assert "secret" not in response.text
        assert "(8 characters)" in response.text


def test_a_refused_order_is_listed(served: Served) -> None:
    order(served, "otto", MOVE | {"to": "green"})
    wait_until(lambda: len(served.desks["lsb"].refusals) == 1, "it is read back")
    (refusal,) = served.client("vera-token").get(ACTIONS).json()["refusals"]
    assert (refusal["by"], refusal["order"]["to"]) == ("otto", "green")
    assert "no instance runs" in refusal["why"]


def test_while_the_audit_topic_takes_nothing_orders_are_refused_for_a_while(served: Served) -> None:
    served.topic.is_away = True
    response = order(served, "otto", MOVE)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
    assert "repeat the request with the same Idempotency-Key" in response.json()["detail"]


@pytest.mark.parametrize("path", ["/api/v1/applications/none/actions", f"{ACTIONS}/none"])
def test_what_does_not_exist_is_not_found(served: Served, path: str) -> None:
    response = served.client("vera-token").get(path)
    assert (response.status_code, response.json()["status"]) == (404, 404)


def test_a_form_of_another_site_orders_nothing(served: Served) -> None:
    client = served.client("ada-token", Origin="https://evil.example")
    assert client.post(ACTIONS, json=MOVE, headers={"Idempotency-Key": "k"}).status_code == 403
    assert served.topic.records() == []
