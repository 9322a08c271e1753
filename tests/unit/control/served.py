"""A control service without Kafka, for tests of its interface."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from fastapi import FastAPI
from starlette.testclient import TestClient

from control.access.guard import Guard
from control.access.login import Login
from control.access.users import User
from control.app import make_app
from control.facts.dead_letters import DeadLetterIndex
from control.facts.flow.endpoints import Endpoints
from control.facts.lookup.keys import Awaited, Key, Keys, Selection, StreamOfKey, UnitRead
from control.facts.lookup.leads import Compared, Lead, Leads, ReplicaLead
from control.facts.lookup.one_at_a_time import Unavailable
from control.facts.lookup.pairs import Pair
from control.facts.lookup.records import Searched, ShownRecord, StreamRecords, ThingRecords
from control.facts.lookup.replicas import Merged, ReplicasRead
from control.facts.lookup.unit_state import AsOf
from control.facts.reading import Facts
from control.facts.timeline import Event
from control.roles import Role
from joiner.operators import JoinSettings
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
from joiner.runtime.membership.status.reading import compose_status
from tests.manual_clock import ManualClock
from tests.unit.control.audited import Topic, desk_with
from tests.unit.control.topologies import ENDPOINTS
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint

PASSWORD: Final = "correct horse battery"  # noqa: S105 - of a test
ORIGIN: Final = "http://localhost"


class FewUsers:
    """Users in memory; see `control.access.login.Directory`. Each user's token is ``<name>-token``."""

    def __init__(self) -> None:
        self.roles = {"vera": Role.VIEWER, "otto": Role.OPERATOR, "ada": Role.ADMIN}

    def with_password(self, name: str, password: str) -> User | None:
        """See `Directory`."""
        return User(name, self.roles[name]) if name in self.roles and password == PASSWORD else None

    def with_token(self, token: str) -> User | None:
        """See `Directory`."""
        name = token.removesuffix("-token")
        return User(name, self.roles[name]) if name in self.roles and name != token else None

    def current(self, user: User) -> User | None:
        """See `Directory`."""
        return User(user.name, self.roles[user.name]) if user.name in self.roles else None


class KnownLookup:
    """Stands in for `Lookup`. ``asked``: what for. ``trouble``: why nothing can be read, if so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.trouble: Unavailable | None = None

    async def keys(self, wanted: Selection, limit: int) -> Keys:
        """See `Lookup`."""
        self._note(*wanted, limit)
        streams = {"left": StreamOfKey("speed", 7, 3), "right": StreamOfKey("torque", 0, None)}
        key = Key(1, "power", "join", "R1", 7, streams, [Awaited("right", "torque", None)])
        return Keys([key], 1, [UnitRead(1, AsOf("checkpoint", {"machine.data": 9}, 999_000))])

    async def records(self, join: JoinSettings, thing: str, limit: int) -> ThingRecords:
        """See `Lookup`."""
        self._note(join.name, thing, limit)
        searched = Searched(0, 9, is_cut=False)
        record = ShownRecord("3", 5_000_000, 1.5, 999_000, is_consumed=True)
        left = StreamRecords("speed", "machine.data", [record], searched)
        right = StreamRecords("torque", "machine.data", [], searched)
        return ThingRecords(join.name, thing, 1, None, left, right, [Pair("3", "4", 1.5)], searched)

    async def replicas(self) -> ReplicasRead:
        """See `Lookup`. Of ten results, replica 1 was first to write three."""
        self._note("replicas")
        compared = Compared(10, 999_000, 999_900, 1, 2, Lead(4, 9))
        leads = Leads(compared, [ReplicaLead(6, Lead(4, 9)), ReplicaLead(3, Lead(5, 7))])
        return ReplicasRead(2, leads, Merged(2, [2, 1], [2, 0], 999_950))

    def _note(self, *asked: Any) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.asked.append(asked)


class Served:
    """The service and what it depends on. Its application ``lsb`` has run, and ``idle`` has not."""

    def __init__(self, *, is_over_tls: bool = False) -> None:
        self.clock = ManualClock()
        self.lookup = KnownLookup()
        self.users = FewUsers()
        self.login = Login(self.users, 3_600.0, "lsb-session", self.clock, is_over_tls=is_over_tls)
        settings = make_settings(partitions=2)
        found = [AppendedCheckpoint(make_checkpoint(counts={"records": 9}), 999_000), None]
        members = {"process": {"one": frozenset({0})}}
        status = compose_status(settings, found, [8, 0], members, {}, [], 1_000.0)
        events = [Event(number, 1_000 + number, "joined", "one has joined") for number in (1, 2, 3)]
        self.watchers: dict[str, Any] = {
            "lsb": SimpleNamespace(
                settings=settings,
                endpoints=ENDPOINTS,
                facts=Facts(number=5, status=status, rates=[120.0, 0.0], lag=8, read_ms=1_000_000, trouble=""),
                events=events,
                lookup=self.lookup,
                letters=DeadLetterIndex(),
            ),
            "idle": SimpleNamespace(
                settings=make_settings(application={"name": "idle"}),
                endpoints=Endpoints(),
                facts=Facts(),
                events=[],
                letters=DeadLetterIndex(),
            ),
        }
        self.topic = Topic(self.clock)
        """The audit topic of the application ``lsb``."""
        self.desks = {name: desk_with(self.topic, watcher) for name, watcher in self.watchers.items()}
        self.app: FastAPI = make_app(self.watchers, self.desks, self.login)
        self.guarded = Guard(self.app, self.login, frozenset({"Join.Example", "fd00::1"}))

    def client(self, token: str | None = None, **headers: str) -> TestClient:
        """Return a client of the service, with a token if given. Errors of the service are responses."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given |= {} if token is None else {"Authorization": f"Bearer {token}"}
        origin = ORIGIN.replace("http:", "https:") if self.login.is_over_tls else ORIGIN
        return TestClient(self.guarded, base_url=origin, headers=given, raise_server_exceptions=False)
