"""Is what the user of an open page may do decided anew each time?"""

from __future__ import annotations

from fastapi import Request

from control.page.frame import Visit
from control.roles import Role
from tests.unit.control.served import Served


def test_a_role_that_was_taken_away_since_the_page_was_opened_counts_at_once() -> None:
    served = Served()
    headers = [(b"authorization", b"Bearer otto-token")]
    request = Request({"type": "http", "method": "GET", "path": "/ui/", "headers": headers})
    visit = Visit(served.watchers["lsb"], served.desks["lsb"], Role.OPERATOR, request, served.login)
    assert visit.refusal(Role.OPERATOR) == ""
    assert visit.refusal(Role.ADMIN) == "this needs the role admin, and otto is operator"
    served.users.roles["otto"] = Role.VIEWER
    assert visit.refusal(Role.OPERATOR) == "this needs the role operator, and otto is viewer"
    del served.users.roles["otto"]
    assert visit.refusal(Role.VIEWER) == "log in again"
