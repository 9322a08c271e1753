"""Does the interface tell what is known, as its description says, and refuse everything else with a reason?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from control.api.applications import ApplicationStatus
from control.facts.lookup.keys import Keys
from control.facts.lookup.one_at_a_time import Unavailable
from control.facts.lookup.records import ThingRecords
from control.facts.overview import Overview
from control.facts.timeline import Event
from control.facts.topology import Topology, topology_of
from tests.unit.control.served import Served

BASE = "/api/v1/applications"


@pytest.fixture
def served() -> Served:
    return Served()


def test_applications_are_shown_at_a_glance(served: Served) -> None:
    found = msgspec.json.decode(served.client("vera-token").get(BASE).content, type=list[Overview])
    lsb, idle = found
    assert (lsb.name, lsb.has_run, lsb.units, lsb.running, lsb.lag, lsb.rate) == ("lsb", True, 2, 1, 8, 120.0)
    assert (lsb.trouble, lsb.read_ms) == ("", 1_000_000)
    assert (idle.name, idle.has_run, idle.running, idle.read_ms) == ("idle", False, 0, None)
    assert idle.trouble == "Kafka has not answered yet"


def test_an_application_is_shown_as_joiner_status_shows_it(served: Served) -> None:
    response = served.client("vera-token").get(f"{BASE}/lsb")
    found = msgspec.json.decode(response.content, type=ApplicationStatus)
    assert found.status == served.watchers["lsb"].facts.status
    assert found.rates == [120.0, 0.0]
    assert served.client("vera-token").get(f"{BASE}/idle").json()["status"] is None


def test_the_topology_is_that_of_the_facts(served: Served) -> None:
    lsb = served.watchers["lsb"]
    response = served.client("vera-token").get(f"{BASE}/lsb/topology")
    found = msgspec.json.decode(response.content, type=Topology)
    assert found == topology_of(lsb.settings, lsb.endpoints, lsb.facts)
    assert {"from", "to", "rate", "lag", "unit", "note", "level"} == set(response.json()["edges"][0])
    idle = msgspec.json.decode(served.client("vera-token").get(f"{BASE}/idle/topology").content, type=Topology)
    assert idle.trouble == "Kafka has not answered yet"


@pytest.mark.parametrize(
    ("query", "numbers"),
    [({}, [1, 2, 3]), ({"after": 1}, [2, 3]), ({"limit": 1}, [3]), ({"after": 3}, []), ({"after": 9}, [])],
)
def test_events_are_told_from_a_number_on(served: Served, query: dict[str, int], numbers: list[int]) -> None:
    response = served.client("vera-token").get(f"{BASE}/lsb/events", params=query)
    found = msgspec.json.decode(response.content, type=list[Event])
    assert [event.number for event in found] == numbers


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", f"{BASE}/none", 404, "no application with this name; known: lsb, idle"),
        ("GET", f"{BASE}/none/events", 404, "no application with this name"),
        ("GET", f"{BASE}/none/topology", 404, "no application with this name"),
        ("GET", f"{BASE}/lsb/events?after=x", 422, "query.after"),
        ("GET", f"{BASE}/lsb/events?after=-1", 422, "query.after"),
        ("GET", f"{BASE}/lsb/events?limit=0", 422, "query.limit"),
        ("GET", f"{BASE}/{'x' * 300}", 422, "path.name"),
        ("GET", f"{BASE}/none/keys", 404, "no application with this name"),
        ("GET", f"{BASE}/lsb/keys?unit=2", 404, "no unit with this number; the units are 0 to 1"),
        ("GET", f"{BASE}/lsb/keys?unit=-1", 422, "query.unit"),
        ("GET", f"{BASE}/lsb/keys?operator=none", 404, "no join or align with this name; known: power"),
        ("GET", f"{BASE}/lsb/keys?limit=1001", 422, "query.limit"),
        ("GET", f"{BASE}/lsb/keys?thing={'x' * 257}", 422, "query.thing"),
        ("GET", f"{BASE}/none/joins/power/records?thing=R1", 404, "no application with this name"),
        ("GET", f"{BASE}/lsb/joins/none/records?thing=R1", 404, "no join with this name; known: power"),
        ("GET", f"{BASE}/lsb/joins/power/records", 422, "query.thing"),
        ("GET", f"{BASE}/lsb/joins/power/records?thing=", 422, "query.thing"),
        ("GET", f"{BASE}/lsb/joins/power/records?thing=R1&limit=501", 422, "query.limit"),
        ("GET", "/api/v1/none", 404, "Not Found"),
        ("GET", f"{BASE}/", 404, "Not Found"),
        ("DELETE", f"{BASE}/lsb", 405, "Method Not Allowed"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_reason(
    served: Served, method: str, path: str, status: int, reason: str
) -> None:
    response = served.client("ada-token").request(method, path)
    assert response.status_code == status
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert reason in problem["detail"]


def test_the_methods_of_a_path_are_named_if_another_one_is_used(served: Served) -> None:
    response = served.client("ada-token").put("/api/v1/session")
    assert (response.status_code, response.headers["Allow"]) == (405, "DELETE, GET, POST")
    assert served.client("ada-token").put(f"{BASE}/lsb").headers["Allow"] == "GET"


def test_keys_are_shown_to_viewers(served: Served) -> None:
    client = served.client("vera-token")
    found = msgspec.json.decode(client.get(f"{BASE}/lsb/keys").content, type=Keys)
    assert [(key.thing, key.held, key.waits_for[0].name) for key in found.keys] == [("R1", 7, "torque")]
    asked: dict[str, Any] = {"unit": 1, "operator": "power", "thing": "R&=1", "limit": 7}
    assert client.get(f"{BASE}/lsb/keys", params=asked).status_code == 200
    assert served.lookup.asked == [(None, "", "", 50), (1, "power", "R&=1", 7)]


def test_the_contents_of_records_are_shown_to_operators_only(served: Served) -> None:
    path = f"{BASE}/lsb/joins/power/records"
    refused = served.client("vera-token").get(path, params={"thing": "R1"})
    assert refused.status_code == 403
    assert refused.json()["detail"] == "this needs the role operator, and vera is viewer"
    # Nobody without the role learns which names there are.
    assert served.client("vera-token").get(f"{BASE}/none/joins/none/records?thing=R1").status_code == 403
    assert served.lookup.asked == []
    response = served.client("otto-token").get(path, params={"thing": "R1", "limit": "5"})
    found = msgspec.json.decode(response.content, type=ThingRecords)
    assert (found.join, found.thing, found.left.records[0].value) == ("power", "R1", 1.5)
    assert served.lookup.asked == [("power", "R1", 5)]


def test_what_cannot_be_read_now_is_refused_with_the_time_to_try_again(served: Served) -> None:
    served.lookup.trouble = Unavailable("too many other readings are waiting", 7)
    for path in ("keys", "joins/power/records?thing=R1"):
        response = served.client("ada-token").get(f"{BASE}/lsb/{path}")
        assert (response.status_code, response.headers["Retry-After"]) == (503, "7")
        assert "too many other readings are waiting; try again in 7 s" in response.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'{"name":"a"}', b'{"name":1,"password":"x"}', b'{"name":"a","password":"x","z":1}'],
)
def test_credentials_that_make_no_sense_are_refused_and_not_repeated(served: Served, body: bytes) -> None:
    response = served.client().post(
        "/api/v1/session", content=body + b" ", headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 422
    secret = {"name": "otto", "password": "p" * 2_000}
    refused = served.client().post("/api/v1/session", json=secret)
    assert refused.status_code == 422
    assert "ppp" not in refused.text


def test_an_error_of_the_program_is_told_without_its_details(served: Served) -> None:
    class Broken:
        @property
        def facts(self) -> Any:
            raise RuntimeError("a secret")

    served.watchers["lsb"] = Broken()
    response = served.client("vera-token").get(f"{BASE}/lsb")
    assert response.status_code == 500
    assert response.json()["detail"] == "an error in this program; see its log"


def test_metrics_are_those_of_each_application(served: Served) -> None:
    text = served.client("vera-token").get("/metrics").text
    assert 'lsb_control_lag_records{application="lsb"} 8.0' in text
    assert 'lsb_control_units_running{application="idle"} 0.0' in text
    assert 'lsb_control_read_timestamp_seconds{application="lsb"} 1000.0' in text


def test_the_description_names_every_route_and_every_type(served: Served) -> None:
    found = served.client("vera-token").get("/api/v1/openapi.json").json()
    below = ["", "/events", "/topology", "/keys", "/joins/{join}/records", "/actions", "/actions/{action}"]
    below += ["/dead-letters", "/dead-letters/{partition}/{offset}", "/replicas"]
    assert set(found["paths"]) == {"/api/v1/session", BASE, *(f"{BASE}/{{name}}{path}" for path in below)}
    references = set(_references(found))
    assert references <= {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert "#/components/schemas/UnitSummary" in references


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [one for item in value for one in _references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [one for item in value.values() for one in _references(item)]
