"""Does the login form let the right person in, say why it refuses others, and carry no script?"""

from __future__ import annotations

import pytest

from tests.unit.control.served import ORIGIN, PASSWORD, Served

FORM = {"name": "otto", "password": PASSWORD}


@pytest.fixture
def served() -> Served:
    return Served()


def test_whoever_has_not_logged_in_is_sent_to_the_form(served: Served) -> None:
    client = served.client(Accept="text/html")
    for path in ("/", "/ui", "/ui/", "/ui/anything", "/none"):
        response = client.get(path, follow_redirects=False)
        assert (response.status_code, response.headers["Location"]) == (303, "/login")
    # A program gets an error instead of a page.
    for path in ("/api/v1/applications", "/api/v1/none"):
        assert client.get(path, follow_redirects=False).status_code == 401
    assert served.client(Accept="*/*").get("/ui/", follow_redirects=False).status_code == 401
    assert client.post("/ui/", follow_redirects=False).status_code == 401


def test_the_form_lets_in_and_sends_to_the_page(served: Served) -> None:
    client = served.client(Origin=ORIGIN)
    response = client.post("/login", data=FORM, follow_redirects=False)
    assert (response.status_code, response.headers["Location"]) == (303, "/ui/")
    assert client.get("/api/v1/session").json() == {"name": "otto", "role": "operator"}


def test_a_wrong_password_is_told_and_what_was_typed_is_no_markup(served: Served) -> None:
    client = served.client(Origin=ORIGIN)
    name = '"><script>alert(1)</script>'
    response = client.post("/login", data={"name": name, "password": "p" * 20}, follow_redirects=False)
    assert response.status_code == 401
    assert "the name or the password is wrong" in response.text
    assert "<script" not in response.text
    assert "ppp" not in response.text


@pytest.mark.parametrize("body", [b"", b"name", b"%ff=%ff", b"name=a&name=b", b"\xff\xfe", b"&".join([b"a=b"] * 11)])
def test_a_form_that_makes_no_sense_lets_nobody_in(served: Served, body: bytes) -> None:
    response = served.client(Origin=ORIGIN).post("/login", content=body, follow_redirects=False)
    assert response.status_code in {400, 401}
    assert 'role="alert"' in response.text


def test_the_form_allows_no_script_and_no_frame(served: Served) -> None:
    policy = served.client().get("/login").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "frame-ancestors 'none'" in policy


def test_another_site_cannot_log_anybody_in(served: Served) -> None:
    client = served.client(Origin="http://evil.example")
    assert client.post("/login", data=FORM, follow_redirects=False).status_code == 403
