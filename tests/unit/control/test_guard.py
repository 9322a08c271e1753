"""Does the guard refuse requests that are cross-origin, unauthenticated, too frequent or too large?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from control.access.guard import BODY_BYTES_MAX, network_of
from control.roles import Role
from tests.unit.control.served import ORIGIN, PASSWORD, Served

APPLICATIONS = "/api/v1/applications"
SESSION = "/api/v1/session"
LOGIN = {"name": "otto", "password": PASSWORD}


@pytest.fixture
def served() -> Served:
    return Served()


def routes(served: Served) -> Iterator[tuple[str, str]]:
    """Yield the method and the path of each route."""
    found = served.app.openapi()["paths"]
    for path, methods in found.items():
        for method in methods:
            yield method.upper(), path.replace("{name}", "lsb")


def test_nothing_but_the_login_and_the_health_is_open_to_all(served: Served) -> None:
    client = served.client()
    open_to_all = set()
    for method, path in [*routes(served), ("GET", "/metrics"), ("GET", "/api/v1/openapi.json"), ("GET", "/none")]:
        response = client.request(method, path)
        if response.status_code == 401:
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert response.headers["Content-Type"] == "application/problem+json"
        else:
            open_to_all.add((method, path))
    assert open_to_all == {("POST", SESSION)}
    # The page has no content without a login either.
    for path in ("/", "/ui/", "/ui/_nicegui/3.18.0/static/nicegui.js", "/login/", "//login", "/LOGIN"):
        assert client.get(path).status_code == 401
    assert client.get("/health").text == "ok\n"


@pytest.mark.parametrize("token", ["", "x", "otto", "-token", "vera-token2", "é", "Bearer otto-token"])
def test_a_wrong_token_opens_nothing(served: Served, token: str) -> None:
    response = served.client().get(APPLICATIONS, headers=[(b"Authorization", f"Bearer {token}".encode())])
    assert response.status_code == 401


def test_a_token_opens_the_service_whatever_the_case_of_its_scheme(served: Served) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert served.client(Authorization=f"{scheme} vera-token").get(SESSION).json()["role"] == "viewer"
    assert served.client(Authorization="Basic vera-token").get(SESSION).status_code == 401


def test_a_session_lasts_from_login_to_logout(served: Served) -> None:
    client = served.client(Origin=ORIGIN)
    response = client.post(SESSION, json=LOGIN)
    assert response.json() == {"name": "otto", "role": "operator"}
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert client.get(APPLICATIONS).status_code == 200
    kept = dict(client.cookies)
    assert client.delete(SESSION).status_code == 200
    assert client.get(APPLICATIONS).status_code == 401
    # Whoever has copied the cookie cannot use it either.
    client.cookies.update(kept)
    assert client.get(APPLICATIONS).status_code == 401


def test_a_session_ends_with_its_time_and_with_its_user_and_follows_the_role(served: Served) -> None:
    client = served.client(Origin=ORIGIN)
    client.post(SESSION, json=LOGIN)
    served.users.roles["otto"] = Role.VIEWER
    assert client.get(SESSION).json()["role"] == "viewer"
    removed = served.users.roles.pop("otto")
    assert client.get(SESSION).status_code == 401
    served.users.roles["otto"] = removed
    served.clock.now_s += 3_600
    assert client.get(SESSION).status_code == 401


def test_over_tls_the_cookie_is_for_this_host_and_tls_alone() -> None:
    served = Served(is_over_tls=True)
    response = served.client(Origin="https://localhost").post(SESSION, json=LOGIN)
    cookie = response.headers["set-cookie"]
    assert cookie.startswith("__Host-lsb-session=")
    assert "Secure" in cookie
    assert "Path=/" in cookie
    assert "Domain" not in cookie


def test_a_service_with_tls_refuses_requests_without_it_and_from_pages_without_it() -> None:
    served = Served(is_over_tls=True)
    plain = TestClient(served.guarded, base_url=ORIGIN)
    assert plain.post(SESSION, json=LOGIN).status_code == 403
    assert served.client(Origin=ORIGIN).post(SESSION, json=LOGIN).status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://localhost:81", "http://localhost.evil.example", "null", "http://["]
)
def test_a_page_of_another_site_cannot_change_anything(served: Served, origin: str) -> None:
    own = served.client(Origin=ORIGIN)
    own.post(SESSION, json=LOGIN)
    foreign = served.client(Origin=origin)
    foreign.cookies = own.cookies
    assert foreign.delete(SESSION).status_code == 403
    assert foreign.post(SESSION, json=LOGIN).status_code == 403
    assert own.get(SESSION).status_code == 200


def test_a_change_by_cookie_must_say_where_it_comes_from(served: Served) -> None:
    own = served.client(Origin=ORIGIN)
    own.post(SESSION, json=LOGIN)
    silent = served.client()
    silent.cookies = own.cookies
    assert silent.delete(SESSION).status_code == 403
    assert silent.delete(SESSION, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert silent.delete(SESSION, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    # A program with a token is no browser that somebody could misuse.
    assert served.client("otto-token").delete(SESSION).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "", "[::1", "127.0.0.1.evil.example", "evil.example@localhost"),
        *("localhost/evil.example", "localhost:evil", "[::1]evil", "localhost:1:2", "::1", "[fd00::2]"),
    ],
)
def test_the_service_answers_to_its_own_names_only(served: Served, host: str) -> None:
    assert served.client("ada-token", Host=host).get(APPLICATIONS).status_code == 421


@pytest.mark.parametrize(
    "host", ["localhost:8090", "127.0.0.1", "[::1]:8090", "join.example", "JOIN.example:443", "[fd00::1]:1"]
)
def test_its_own_names_are_the_loopback_and_those_of_the_settings(served: Served, host: str) -> None:
    assert served.client("ada-token", Host=host).get(APPLICATIONS).status_code == 200


def test_a_body_that_is_too_large_is_refused_whether_or_not_its_length_is_announced(served: Served) -> None:
    client = served.client()
    assert client.post(SESSION, content=b" " * (BODY_BYTES_MAX + 1)).status_code == 413
    parts = (b" " * 1_000 for _ in range(BODY_BYTES_MAX // 1_000 + 1))
    assert client.post(SESSION, content=parts).status_code == 411
    for length in ("-1", "x", "1" * 5_000):
        assert client.post(SESSION, content=b"{}", headers={"Content-Length": length}).status_code == 413


def test_passwords_cannot_be_tried_out(served: Served) -> None:
    client = served.client()
    wrong = {"name": "otto", "password": "wrong"}
    found = [client.post(SESSION, json=wrong).status_code for _ in range(8)]
    assert found == [401] * 5 + [429] * 3
    # Not even the right one gets through now.
    response = client.post(SESSION, json=LOGIN)
    assert (response.status_code, response.headers["Retry-After"]) == (429, "10")
    served.clock.now_s += 10
    assert client.post(SESSION, json=LOGIN).status_code == 200


def test_a_caller_who_asks_too_often_is_told_to_wait(served: Served) -> None:
    client = served.client("vera-token")
    found = [client.get(SESSION).status_code for _ in range(201)]
    assert found == [200] * 200 + [429]
    served.clock.now_s += 1
    assert client.get(SESSION).status_code == 200


def test_every_answer_has_the_security_headers(served: Served) -> None:
    served.watchers["broken"] = None  # an error of the program
    vera, nobody = served.client("vera-token"), served.client()
    answers = (
        vera.get(SESSION),
        nobody.get(SESSION),
        vera.get(f"{APPLICATIONS}/none"),
        vera.get(f"{APPLICATIONS}/broken"),
        vera.get(SESSION, headers={"Host": "evil.example"}),
        vera.post(SESSION, content=b" " * (BODY_BYTES_MAX + 1)),
        nobody.get("/health"),
        nobody.get("/login"),
    )
    assert {answer.status_code for answer in answers} == {200, 401, 404, 413, 421, 500}
    for answer in answers:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cache-Control"] == "no-store"


def test_a_websocket_passes_the_same_checks(served: Served) -> None:
    @served.app.websocket("/socket")
    async def greet(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(socket.state.user.name)
        await socket.close()

    with served.client("vera-token").websocket_connect("ws://localhost/socket") as socket:
        assert socket.receive_text() == "vera"
    own = served.client(Origin=ORIGIN)
    own.post(SESSION, json=LOGIN)
    with own.websocket_connect("ws://localhost/socket") as socket:
        assert socket.receive_text() == "otto"
    own.headers["Origin"] = "http://evil.example"
    nobody, renamed = served.client(), served.client("vera-token", Host="evil.example")
    silent = served.client()
    silent.cookies = own.cookies
    # A reading request of another site's page is refused as well: long polling begins with one.
    assert own.get(SESSION).status_code == 403
    for client in (own, nobody, renamed, silent):
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("ws://localhost/socket"):
            pass
    # What is open to all is so for HTTP alone.
    for path in ("health", "login"):
        with pytest.raises(WebSocketDisconnect), nobody.websocket_connect(f"ws://localhost/{path}"):
            pass


def test_the_health_is_answered_under_any_name_and_as_often_as_a_probe_likes(served: Served) -> None:
    client = served.client(Host="10.1.2.3:8090")
    assert {client.get("/health").status_code for _ in range(250)} == {200}
    assert client.head("/health").status_code == 200
    assert client.post("/health").status_code == 421


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("unknown", "unknown"),
    ],
)
def test_callers_are_counted_by_address_and_with_ipv6_by_network(address: str, network: str) -> None:
    assert network_of(address) == network
