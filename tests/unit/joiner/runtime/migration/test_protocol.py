"""Source and target of a move: in any order of events, losses and crashes, exactly one ends up serving the unit.

Both state machines run against an in-memory log, in every order of their steps: either side reads its next record, a
runner completes its work, time passes, a record is lost, or either side crashes. The runner is modelled after the
joiner: a claimant reads the log first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from joiner.runtime.control import Back, Cancelled, Claiming, Ready, Record, Refused, Released, Request, Resumed
from joiner.runtime.migration.order import Order, Step
from joiner.runtime.migration.protocol import (
    LEASE_S,
    RECLAIM_AFTER_S,
    REPEAT_S,
    Action,
    Claim,
    CoolDown,
    Reclaim,
    Release,
    Source,
    Target,
    WarmUp,
    Write,
)
from joiner.runtime.model import OnTheWay

MOVE = "m1"
UNIT = 3
WAY = OnTheWay(MOVE, "process")
REQUEST = Request(move=MOVE, units=[UNIT], to="green")
READY = Ready(move=MOVE, unit=UNIT, to="green", instance="g")
RELEASED = Released(move=MOVE, unit=UNIT, to="green", instance="b")
TAKEN = Resumed(move=MOVE, unit=UNIT, to="green", instance="g")


def refused(move: str = MOVE) -> Refused:
    return Refused(move=move, unit=UNIT, to="green", instance="g", why="no")


class Side:
    """A runner: its state machines, whether it is serving the unit, and its outstanding work."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.begin()

    def begin(self) -> None:
        """Reset to the state after a start."""
        self.source, self.target = Source(self.site, self.site), Target(self.site, self.site)
        self.serves = False
        self.work: list[Action] = []
        self.is_dead = False


@dataclass
class Play:
    """The log, the unread control records of each side, and the number of faults that may still occur."""

    owner: str = "process"
    way: OnTheWay | None = None
    claims: int = 0
    now_s: float = 0.0
    requests: int = 2
    cancels: int = 1
    losses: int = 1
    crashes: int = 1
    sides: dict[str, Side] = field(default_factory=lambda: {name: Side(name) for name in ("process", "green")})
    unread: dict[str, list[Record]] = field(default_factory=lambda: {"process": [], "green": []})

    def write(self, record: Record) -> None:
        for unread in self.unread.values():
            unread.append(record)

    def do(self, name: str, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Write):
                self.write(action.record)
            elif not isinstance(action, CoolDown):
                self.sides[name].work.append(action)

    def key(self) -> str:
        """Return a key that is equal for equivalent states."""
        sides = [
            (name, vars(side.source)["_units"], vars(side.target)["_units"], side.serves, side.work, side.is_dead)
            for name, side in self.sides.items()
        ]
        left = self.requests, self.cancels, self.losses, self.crashes
        numbers = self.owner, self.way, self.now_s, left
        return repr((numbers, sides, self.unread))

    def steps(self) -> Iterator[Callable[[Play], None]]:
        """Yield every possible next step."""
        if self.requests:
            yield Play.ask
        if self.cancels:
            yield Play.cancel
        for name in self.sides:
            for step in self.steps_of(name):
                yield partial(step, name=name)

    def steps_of(self, name: str) -> Iterator[Callable[..., None]]:
        """Yield the possible next steps of a side."""
        side = self.sides[name]
        if side.is_dead:
            yield Play.start
            return
        if self.crashes:
            yield Play.crash
        if self.unread[name]:
            yield Play.hear
        if self.unread[name] and self.losses:
            yield Play.lose
        if side.work:
            yield Play.end_work
        if side.work and self.losses and isinstance(side.work[0], Release):
            yield Play.release_unwritten

    def ask(self) -> None:
        self.requests -= 1
        self.write(REQUEST)

    def cancel(self) -> None:
        self.cancels -= 1
        self.write(Cancelled(move=MOVE, units=[UNIT]))

    def release_unwritten(self, name: str) -> None:
        """Write the last transaction but lose the response, so that the runner reads the log."""
        self.losses -= 1
        side, action = self.sides[name], self.sides[name].work.pop(0)
        assert isinstance(action, Release)
        if side.serves and self.owner == name and self.way is None:
            self.owner, self.way = action.to, action.way
        side.serves = False
        side.source.kept(UNIT)
        self.look(name)

    def lose(self, name: str) -> None:
        self.losses -= 1
        self.unread[name].pop(0)

    def crash(self, name: str) -> None:
        self.crashes -= 1
        self.sides[name].begin()
        self.sides[name].is_dead = True
        self.unread[name].clear()

    def start(self, name: str) -> None:
        """Start a new runner under the name. It claims the unit if its site owns it."""
        self.sides[name].begin()
        self.look(name)

    def hear(self, name: str) -> None:
        side, record = self.sides[name], self.unread[name].pop(0)
        owned, absent = ({UNIT}, set[int]()) if side.serves else (set[int](), {UNIT})
        self.do(name, side.source.hear(record, self.now_s, owned))
        self.do(name, side.target.hear(record, self.now_s, absent))

    def tick(self) -> None:
        """Advance the clock past every timeout, and let the live sides act."""
        self.now_s += max(LEASE_S, RECLAIM_AFTER_S) + 1
        for name, side in self.sides.items():
            if not side.is_dead:
                self.do(name, side.source.tick(self.now_s) + side.target.tick(self.now_s))
                self.look(name)

    def look(self, name: str) -> None:
        """Read the log, as a runner does periodically for a unit that it does not serve, and act on it."""
        side = self.sides[name]
        if not side.serves and not side.work:
            if self.owner == name:
                self.claim(name, None)
            elif self.way is not None:
                self.do(name, side.source.found(UNIT, self.way, self.owner, self.now_s))

    def end_work(self, name: str) -> None:
        side, action = self.sides[name], self.sides[name].work.pop(0)
        if isinstance(action, Release):
            # The runner is fenced if another one has claimed the unit in the meantime.
            if not side.serves or self.owner != name or self.way is not None:
                side.serves = False
                side.source.kept(UNIT)
                return
            side.serves = False
            self.owner, self.way = action.to, action.way
            self.write(action.record)
            side.source.released(UNIT, self.now_s)
        elif isinstance(action, WarmUp):
            actions = side.target.dropped(UNIT) if self.owner == name and self.way is None else side.target.warmed(UNIT)
            self.do(name, actions)
        elif isinstance(action, Reclaim):
            self.claim(name, action.way)
        elif isinstance(action, Claim):
            self.claim(name, None)

    def claim(self, name: str, back: OnTheWay | None) -> None:
        side = self.sides[name]
        if self.owner != name and (back is None or self.way != back):
            if self.way is not None:
                self.do(name, side.source.found(UNIT, self.way, self.owner, self.now_s))
            else:
                side.source.gone(UNIT)
            if UNIT in side.target.claiming:
                self.do(name, side.target.lost(UNIT))
            return
        for other in self.sides.values():
            other.serves = False
        self.owner, self.way, side.serves = name, None, True
        self.claims += 1
        self.do(name, side.source.is_back(UNIT))
        self.do(name, side.target.resumed(UNIT))


def begin() -> Play:
    play = Play()
    play.sides["process"].serves = True
    return play


def come_to_rest(play: Play) -> None:
    """Restart the dead sides, then pass time without further faults until no work is left."""
    for name, side in play.sides.items():
        if side.is_dead:
            play.start(name)
    for _ in range(6):
        for _ in range(40):
            busy = [name for name, side in play.sides.items() if side.work or play.unread[name]]
            for name in busy:
                if play.sides[name].work:
                    play.end_work(name)
                elif play.unread[name]:
                    play.hear(name)
            if not busy:
                break
        play.tick()


def test_in_every_order_of_steps_losses_and_crashes_exactly_one_side_serves_in_the_end() -> None:
    seen: set[str] = set()
    ends = dict.fromkeys(("process", "green"), 0)
    waiting = [begin()]
    while waiting:
        play = waiting.pop()
        for step in play.steps():
            after = copy.deepcopy(play)
            step(after)
            if (key := after.key()) in seen:
                continue
            seen.add(key)
            waiting.append(after)
            rested = copy.deepcopy(after)
            come_to_rest(rested)
            serving = [name for name, side in rested.sides.items() if side.serves]
            assert serving == [rested.owner], (key, serving)
            assert rested.way is None, key
            assert not any(side.source.underway or side.target.claiming for side in rested.sides.values()), key
            ends[rested.owner] += 1
    assert min(ends.values()) > 100, ends


def test_a_source_alone_takes_back_what_nobody_claims() -> None:
    source = Source("process", "b")
    assert source.hear(REQUEST, 0.0, {UNIT}) == []
    assert source.hear(READY, 0.1, {UNIT}) == [Release(UNIT, WAY, "green", RELEASED)]
    source.released(UNIT, 0.2)
    assert source.tick(RECLAIM_AFTER_S) == []
    assert source.tick(RECLAIM_AFTER_S + 0.2) == [Reclaim(UNIT, WAY)]
    assert source.tick(2 * RECLAIM_AFTER_S + 9) == []
    assert source.is_back(UNIT) == [Write(Back(move=MOVE, unit=UNIT, to="green", instance="b"))]
    assert source.underway == set()


def claiming(*units: int, to: str = "green", run: str = "g-1") -> Claiming:
    return Claiming(units=list(units), to=to, run=run)


def test_a_source_waits_for_a_target_that_is_claiming_and_for_nobody_else() -> None:
    source = Source("process", "b")
    source.found(UNIT, WAY, "green", 0.0)
    for record in (claiming(UNIT + 1), claiming(UNIT, to="blue")):
        assert source.hear(record, 1.0, ()) == []
    assert source.hear(claiming(0, UNIT), 0.5, ()) == []
    assert source.tick(RECLAIM_AFTER_S + 0.4) == []
    assert source.tick(RECLAIM_AFTER_S + 0.5) == [Reclaim(UNIT, WAY)]


def test_a_source_that_took_back_in_vain_waits_twice_as_long_before_the_next_time() -> None:
    source, now_s = Source("process", "b"), 0.0
    for attempt in range(3):
        source.found(UNIT, WAY, "green", now_s)
        assert source.tick(now_s + RECLAIM_AFTER_S * 2**attempt - 0.1) == []
        now_s += RECLAIM_AFTER_S * 2**attempt
        assert source.tick(now_s) == [Reclaim(UNIT, WAY)]


def test_what_is_found_on_its_way_is_told_once_and_its_time_runs_from_then_on() -> None:
    source = Source("process", "b")
    assert source.found(UNIT, WAY, "green", 1.0) == [Write(RELEASED)]
    assert source.found(UNIT, WAY, "green", RECLAIM_AFTER_S) == []
    assert source.tick(RECLAIM_AFTER_S + 1.0) == [Reclaim(UNIT, WAY)]
    assert Source("blue", "x").found(UNIT, WAY, "green", 1.0) == [], "only the releasing site may reclaim the unit"


def test_a_refusal_behind_the_release_is_answered_at_once() -> None:
    source = Source("process", "b")
    source.hear(REQUEST, 0.0, {UNIT})
    source.hear(READY, 0.0, {UNIT})
    assert source.hear(refused(), 0.1, set()) == []
    source.released(UNIT, 0.2)
    assert source.hear(refused("another"), 0.3, set()) == []
    assert source.hear(refused(), 0.3, set()) == [Reclaim(UNIT, WAY)]


@pytest.mark.parametrize(
    "between",
    [
        [],
        [Cancelled(move=MOVE, units=[UNIT])],
        [Request(move=MOVE, units=[UNIT], to="process")],
        [Request(move=MOVE, units=[UNIT + 1], to="green")],
    ],
)
def test_nothing_is_released_without_an_order_that_lasts(between: list[Record]) -> None:
    source = Source("process", "b")
    if between and isinstance(between[0], Cancelled):
        source.hear(REQUEST, 0.0, {UNIT})
    for record in between:
        source.hear(record, 0.0, {UNIT})
    assert source.hear(READY, 0.1, {UNIT}) == []


def test_an_order_that_was_not_repeated_has_lapsed() -> None:
    source, target = Source("process", "b"), Target("green", "g")
    source.hear(REQUEST, 0.0, {UNIT})
    assert source.hear(READY, LEASE_S + 0.1, {UNIT}) == []
    source.tick(LEASE_S + 0.1)
    assert target.hear(REQUEST, 0.0, {UNIT}) == [WarmUp(UNIT)]
    assert target.warmed(UNIT) == [Write(READY)]
    assert target.hear(REQUEST, LEASE_S, {UNIT}) == [Write(READY)]
    assert target.tick(LEASE_S + 1) == []
    assert target.tick(2 * LEASE_S + 0.1) == [CoolDown(UNIT)]


def test_of_two_orders_the_first_is_followed_and_the_second_is_told_so() -> None:
    source = Source("process", "b")
    source.hear(REQUEST, 0.0, {UNIT})
    (told,) = source.hear(Request(move="m2", units=[UNIT], to="blue"), 0.1, {UNIT})
    assert isinstance(told, Write)
    assert isinstance(told.record, Refused)
    assert told.record.move == "m2"
    assert "being moved to green" in told.record.why


def test_what_is_released_while_its_state_is_built_is_claimed_when_that_is_done() -> None:
    target = Target("green", "g")
    assert target.hear(REQUEST, 0.0, {UNIT}) == [WarmUp(UNIT)]
    assert target.hear(RELEASED, 0.1, {UNIT}) == []
    assert target.tick(LEASE_S + 1) == [], "a released unit is not forgotten"
    assert target.warmed(UNIT) == [Claim(UNIT)]
    assert target.hear(RELEASED, 0.2, {UNIT}) == []
    assert target.resumed(UNIT) == [Write(TAKEN), CoolDown(UNIT)]


def test_what_is_released_is_claimed_also_where_nothing_was_prepared() -> None:
    target = Target("green", "g")
    assert target.hear(RELEASED, 0.0, {UNIT}) == [Claim(UNIT)]
    assert target.failed(UNIT, "no") == [Write(refused()), CoolDown(UNIT)]
    assert target.hear(RELEASED, 0.0, set()) == [], "another runner of the site is to serve it"
    assert Target("blue", "x").hear(RELEASED, 0.0, {UNIT}) == []


def ordered(*records: Record) -> tuple[Order, Any]:
    order = Order(MOVE, "green", [UNIT], until_s=10.0)
    order.due(0.0)
    for at_ms, record in enumerate(records):
        order.hear(record, at_ms * 100)
    return order, order.units[UNIT]


def test_an_order_is_repeated_until_it_is_done_or_its_time_is_over() -> None:
    order = Order(MOVE, "green", [UNIT], until_s=10.0)
    assert order.due(0.0) == [REQUEST]
    assert order.due(REPEAT_S / 2) == []
    assert order.due(REPEAT_S) == [REQUEST]
    assert order.due(10.0) == [Cancelled(move=MOVE, units=[UNIT])]
    assert order.due(11.0) == []
    assert (order.is_over, order.units[UNIT].step) == (True, Step.KEPT)


def test_an_order_tells_the_pause_by_the_clock_of_the_log() -> None:
    order, journey = ordered(READY, RELEASED, Resumed(move=MOVE, unit=UNIT, to="green", instance="g", late_ms=30))
    assert (journey.step, journey.pause_ms, order.is_over) == (Step.MOVED, 70, True)
    _, quicker = ordered(READY, RELEASED, Resumed(move=MOVE, unit=UNIT, to="green", instance="g", late_ms=300))
    assert quicker.pause_ms == 0


def test_what_was_ready_when_the_order_was_withdrawn_may_still_be_released() -> None:
    order, journey = ordered(READY)
    assert order.cancel("stopped") == [Cancelled(move=MOVE, units=[UNIT])]
    assert order.underway == [UNIT]
    order.hear(RELEASED, 100)
    order.hear(TAKEN, 200)
    assert (journey.step, journey.pause_ms) == (Step.MOVED, 100)


def test_an_order_knows_who_refused_and_who_took_back() -> None:
    assert ordered(refused())[1].step is Step.KEPT
    journey = ordered(READY, RELEASED, refused())[1]
    assert (journey.step, journey.why) == (Step.RELEASED, "no")
    back = Back(move=MOVE, unit=UNIT, to="green", instance="b")
    assert ordered(READY, RELEASED, back)[1].step is Step.KEPT
    assert ordered(Ready(move="other", unit=UNIT, to="green", instance="g"))[1].step is Step.ASKED
