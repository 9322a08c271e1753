"""Plays random histories of a site: instances die, stall, slow down, leave and return, and records are lost.

Afterwards, the instances are left alone. Each unit must then be served by one instance, the one that is assigned, and
nothing may change any more. Orders of operators must be followed, whoever has read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from random import Random
from typing import Final

from joiner.runtime.control import Pin, Retry, Standbys
from tests.simulation.membership_world import World, accepted_in

START_S: Final = 3.0
TROUBLE_S: Final = 8.0
LONGEST_STALL_S: Final = 10.0
SETTLED_S: Final = 25.0
STILL_S: Final = 5.0
PAUSE_S: Final = 8.0
CALM_PAUSE_S: Final = 1.0
READY_PAUSE_S: Final = 2.5
"""Enough to notice a failure, and for an instance that is five times slower to claim a unit whose state it has."""

STALLS: Final = 30
STALL_EVERY_S: Final = 2.0
STALL_S: Final = 1.0
UNSTEADY_CLAIMS_MAX: Final = 30
BLINK_S: Final = (0.4, 0.6)
OUTAGES_S: Final = (0.7, 1.5, 5, 20)
STEADY_S: Final = 8.0
"""Longer than an instance must have been in touch before it ignores the silence of others again after an outage."""

_HALF: Final = 0.5
_MIXED: Final = 0.2


def play(seed: int) -> tuple[str, World]:
    """Play the history of a seed. Return what is wrong in the end, or an empty text, and the world."""
    random = Random(seed)
    world = World(seed, units=random.choice([1, 3, 8, 16]), standbys=random.choice([0, 0, 1, 1, 2]))
    names = ["a0", "b0", "a1", "b1"][: random.choice([1, 2, 3, 4])]
    if random.random() < _MIXED:
        # The settings are being changed.
        world.standbys_of = {name: random.choice([0, 1, 2]) for name in names}
    for name in names:
        world.after(random.choice([0, 0, 0.5]), partial(world.start, name))
    world.run(START_S)
    world.loss = random.choice([0, 0, 0.02, 0.1])
    for _ in range(random.randrange(6)):
        world.after(random.uniform(0, TROUBLE_S), partial(_trouble, world, random, random.choice(names)))
    end_s = START_S + TROUBLE_S
    world.run(end_s)
    world.loss = 0
    end_s += LONGEST_STALL_S + 2
    world.run(end_s)
    for one in world.instances.values():
        one.slowness = 1
    for name in names:
        if name not in world.instances:
            world.start(name)
        world.drain(name, drained=False)
    world.run(end_s + SETTLED_S)
    claims = world.claims
    world.run(end_s + SETTLED_S + STILL_S)
    return _fault(world, len(names), claims), world


def _trouble(world: World, random: Random, name: str) -> None:
    kind = random.choice(["kill", "stall", "stall", "leave", "slow", "drain", "undrain", "restart"])
    if kind in {"drain", "undrain"}:
        world.drain(name, drained=kind == "drain")
    elif name not in world.instances:
        world.start(name)
    elif kind == "stall":
        world.stall(name, random.choice([0.2, 0.6, 1, 3, LONGEST_STALL_S]))
    elif kind == "leave":
        world.leave(name)
    elif kind == "slow":
        world.instances[name].slowness = random.choice([1, 3, 10])
    else:
        world.kill(name)
        if kind == "restart":
            world.start(name)


def play_calmly(seed: int) -> str:
    """Let instances come, leave and be drained, without a fault. Return what is wrong, or an empty text."""
    random = Random(seed)
    world = World(seed, units=random.choice([1, 3, 8, 16]), standbys=random.choice([0, 1, 2]))
    world.start("a0")
    world.run(START_S)
    world.longest_pause_s = 0.0
    world.start("b0")
    world.start("a1")
    world.run(START_S + TROUBLE_S)
    if random.random() < _HALF:
        world.leave("a0")
    else:
        world.drain("a0", drained=True)
    world.run(START_S + 2 * TROUBLE_S)
    if world.duels:
        return f"{world.duels} owners were fenced without need"
    if any("a0" in world.servers(unit) for unit in range(world.units)):
        return "a unit is still where it should leave"
    return f"a unit paused for {world.longest_pause_s:.1f} s" if world.longest_pause_s > CALM_PAUSE_S else ""


def play_unsteadily(seed: int) -> str:
    """Let one instance stall again and again. Return what is wrong, or an empty text."""
    world = World(seed, units=8, standbys=1)
    for name in ("a0", "b0", "a1"):
        world.start(name)
    world.run(START_S)
    before = world.claims
    for stall in range(STALLS):
        world.after(stall * STALL_EVERY_S, partial(world.stall, "b0", STALL_S))
    world.run(START_S + STALLS * STALL_EVERY_S)
    return f"{world.claims - before} claims" if world.claims - before > UNSTEADY_CLAIMS_MAX else ""


def play_blinks(seed: int) -> tuple[str, World]:
    """Suspend each instance for about the failure timeout. Return what is wrong, or an empty text, and the world."""
    random = Random(seed)
    world = World(seed, units=random.choice([1, 3, 8]), standbys=random.choice([0, 1]))
    names = ["a0", "b0", "a1", "b1"]
    for name in names:
        world.start(name)
    world.run(START_S)
    for name in random.sample(names, len(names)):
        world.stall(name, random.uniform(*BLINK_S))
        world.run(world.now_s + START_S)
    world.run(world.now_s + SETTLED_S)
    claims = world.claims
    world.run(world.now_s + STILL_S)
    return _fault(world, len(names), claims), world


def play_outage(seed: int) -> str:
    """Let Kafka be unreachable several times. No unit may change its owner. Return what is wrong, or an empty text."""
    random, world = _site_at_rest(seed)
    claims = world.claims
    for _ in range(3):
        world.cut(random.choice(OUTAGES_S), world.instances)
        world.run(world.outage_s + STEADY_S)
    if world.claims != claims:
        return f"{world.claims - claims} claims after an outage"
    return _fault(world, len(world.instances), claims)


def play_outages(seed: int) -> str:
    """Let outages follow each other so soon that they may be taken for failures. Return what is wrong in the end."""
    random, world = _site_at_rest(seed)
    for _ in range(6):
        world.cut(random.choice(OUTAGES_S), world.instances)
        world.run(world.outage_s + random.uniform(0, STEADY_S))
    world.run(world.now_s + SETTLED_S)
    claims = world.claims
    world.run(world.now_s + STILL_S)
    return _fault(world, len(world.instances), claims)


def _site_at_rest(seed: int) -> tuple[Random, World]:
    random = Random(seed)
    world = World(seed, units=random.choice([1, 3, 8, 16]), standbys=random.choice([0, 1]))
    for name in ["a0", "b0", "a1", "b1"][: random.choice([2, 3, 4])]:
        world.start(name)
    world.run(2 * START_S)
    return random, world


def play_truncation(seed: int) -> str:
    """Suspend an instance until the log has lost what it missed. Return what is wrong, or an empty text."""
    random = Random(seed)
    world = World(seed, units=random.choice([1, 3, 8, 16]), standbys=random.choice([0, 1]))
    names = ["a0", "b0", "a1"]
    for name in names:
        world.start(name)
    world.run(2 * START_S)
    late = random.choice(names)
    world.stall(late, LONGEST_STALL_S, log_kept=random.choice([0, 5, 50]))
    for name in names:
        if name != late and random.random() < _HALF:
            world.after(random.uniform(2, 5), partial(world.kill, name))
            world.after(random.uniform(5, 8), partial(world.start, name))
    world.run(2 * START_S + LONGEST_STALL_S + SETTLED_S)
    claims = world.claims
    world.run(world.now_s + STILL_S)
    return _fault(world, len(names), claims)


def play_orders(seed: int) -> str:
    """Give orders while units fail, instances come and go, and some miss records. Return what is wrong."""
    random = Random(seed)
    world = World(seed, units=random.choice([1, 3, 8, 16]), standbys=random.choice([0, 0, 1]))
    names = ["a0", "b0", "a1", "b1"][: random.choice([2, 3, 4])]
    for name in names:
        world.start(name)
    if random.random() < _MIXED:
        world.start_older("old")
        world.after(random.uniform(START_S, START_S + TROUBLE_S), partial(world.stop_older, "old"))
    world.run(START_S)
    world.loss = random.choice([0, 0.02])
    for _ in range(random.randrange(2, 12)):
        world.after(random.uniform(0, TROUBLE_S), partial(_order, world, random, random.choice(names)))
    for _ in range(random.randrange(3)):
        world.after(random.uniform(0, TROUBLE_S), partial(_trouble, world, random, random.choice(names)))
    if random.random() < _HALF:
        late = random.choice(names)
        log_kept = random.choice([0, 5, 50])
        world.after(random.uniform(0, 2), lambda: _stall_if_there(world, late, log_kept))
    world.run(START_S + TROUBLE_S)
    world.loss = 0
    world.run(world.now_s + LONGEST_STALL_S + 2)
    for one in world.instances.values():
        one.slowness = 1
    for name in names:
        if name not in world.instances:
            world.start(name)
        world.drain(name, drained=False)
    world.run(world.now_s + START_S)
    # What was in the way is mended, and each unit is tried again.
    world.broken.clear()
    for unit in range(world.units):
        world.order(Retry(site="plain", unit=unit))
    world.run(world.now_s + SETTLED_S)
    claims = world.claims
    world.run(world.now_s + STILL_S)
    return next(_faults(world, len(names), claims), "")


def play_pins(seed: int) -> str:
    """Pin units while nothing fails, and restart an instance. Return what is wrong, or an empty text."""
    random = Random(seed)
    world = World(seed, units=random.choice([3, 8, 16]), standbys=random.choice([0, 1]))
    names = ["a0", "b0", "a1"]
    for name in names:
        world.start(name)
    world.run(2 * START_S)
    world.longest_pause_s = 0.0
    for unit in random.sample(range(world.units), random.choice([1, 2, 3])):
        world.after(random.uniform(0, START_S), partial(world.order, Pin(site="plain", unit=unit, instance="b0")))
    if random.random() < _HALF:
        world.after(random.uniform(0, START_S), partial(world.order, Standbys(site="plain", count=1)))
    world.run(world.now_s + 2 * START_S)
    pinned = {unit: (world.servers(unit), world.fence[unit]) for unit in world.pins}
    if any(served != ["b0"] for served, _ in pinned.values()):
        return f"the units {world.pins} are served by {pinned}"
    world.leave("a1")
    world.run(world.now_s + START_S)
    world.start("a1")
    world.run(world.now_s + SETTLED_S)
    if {unit: (world.servers(unit), world.fence[unit]) for unit in world.pins} != pinned:
        return "a pinned unit has changed its owner"
    if world.duels:
        return f"{world.duels} owners were fenced without need"
    if world.longest_pause_s > CALM_PAUSE_S:
        return f"a unit paused for {world.longest_pause_s:.1f} s"
    return next(_faults(world, len(names), world.claims), "")


def play_pins_in_vain(seed: int) -> str:
    """Pin units to an instance that cannot build their state. No unit may move. Return what is wrong."""
    random = Random(seed)
    world = World(seed, units=random.choice([3, 8, 16]), standbys=random.choice([0, 1]))
    for name in ("a0", "b0", "a1"):
        world.start(name)
    world.run(2 * START_S)
    known = {*world.instances["b0"].serves, *world.instances["b0"].follows}
    others = [unit for unit in range(world.units) if unit not in known]
    for unit in random.sample(others, min(len(others), random.choice([1, 2]))):
        world.broken.add(("b0", unit))
        world.after(random.uniform(0, START_S), partial(world.order, Pin(site="plain", unit=unit, instance="b0")))
    claims = world.claims
    world.run(world.now_s + SETTLED_S)
    return f"{world.claims - claims} claims" if world.claims != claims else ""


def play_handovers(seed: int) -> str:
    """Let an instance end while a new one builds the state of units that it serves. Return what is wrong.

    If a standby has the state of a unit, it must serve the unit, not the instance that is still building the state.
    """
    random = Random(seed)
    world = World(seed, units=random.choice([3, 8, 16]), standbys=random.choice([1, 2]))
    names = ["a0", "b0", "a1"]
    for name in names:
        world.start(name)
    world.run(2 * START_S)
    # The first instance in the order of names usually proposes the assignments.
    world.instances["a0"].slowness = random.choice([1, 5])
    world.start("b1")
    world.instances["b1"].building = 10
    world.longest_ready_pause_s = 0.0
    world.run(world.now_s + random.uniform(0.5, 4))
    name = random.choice(names)
    match random.choice(["kill", "report", "restart", "leave", "suspend"]):
        case "leave":
            world.leave(name)
        case "suspend":
            # When it continues, it may fence the new owners before it learns of them. They then lose the states.
            world.stall(name, random.uniform(1, 3))
            for one in world.instances.values():
                one.building = 10
        case kind:
            world.kill(name, reported=kind == "report")
            if kind == "restart":
                world.start(name)
                world.instances[name].building = 10
    world.run(world.now_s + SETTLED_S)
    for one in world.instances.values():
        one.slowness = one.building = 1
    if name not in world.instances:
        world.start(name)
    world.run(world.now_s + SETTLED_S)
    claims = world.claims
    world.run(world.now_s + STILL_S)
    if world.longest_ready_pause_s > READY_PAUSE_S:
        return f"a unit paused for {world.longest_ready_pause_s:.1f} s although a standby had its state"
    return _fault(world, len(names) + 1, claims)


def _stall_if_there(world: World, name: str, log_kept: int) -> None:
    if name in world.instances:
        world.stall(name, LONGEST_STALL_S, log_kept=log_kept)


def _order(world: World, random: Random, name: str) -> None:
    unit = random.randrange(world.units)
    match random.choice(["pin", "pin", "unpin", "standbys", "fail", "fail everywhere", "retry"]):
        case "pin":
            world.order(Pin(site="plain", unit=unit, instance=name))
        case "unpin":
            world.order(Pin(site="plain", unit=unit))
        case "standbys":
            world.order(Standbys(site="plain", count=random.choice([0, 1, 2, None])))
        case "fail":
            world.fail(name, unit)
        case "fail everywhere":
            for other in [*world.instances]:
                world.fail(other, unit)
        case _:
            world.order(Retry(site="plain", unit=unit))


def play_upgrade(seed: int) -> str:
    """Replace processes of an older release by this one, one by one, perhaps back and forth. Return what is wrong."""
    random = Random(seed)
    world = World(seed, units=random.choice([1, 3, 8, 16]), standbys=random.choice([0, 1]))
    names = ["a0", "b0", "a1"][: random.choice([1, 2, 3])]
    for name in names:
        world.start_older(name)
    world.run(START_S)
    for name in names * random.choice([1, 2]):
        if name in world.older:
            world.stop_older(name)
            world.start(name)
        else:
            world.kill(name)
            world.start_older(name)
        world.run(world.now_s + random.choice([0.5, 3, 9]))
    for name in [*world.older]:
        world.stop_older(name)
        world.start(name)
    world.run(world.now_s + SETTLED_S)
    claims = world.claims
    world.run(world.now_s + STILL_S)
    return _fault(world, len(names), claims)


PLAYS: Final[dict[str, Callable[[int], str]]] = {
    "troubled": lambda seed: play(seed)[0],
    "blinks": lambda seed: play_blinks(seed)[0],
    "calm": play_calmly,
    "unsteady": play_unsteadily,
    "upgrade": play_upgrade,
    "outage": play_outage,
    "outages": play_outages,
    "truncation": play_truncation,
    "handovers": play_handovers,
    "orders": play_orders,
    "pins": play_pins,
    "pins in vain": play_pins_in_vain,
}
"""The kinds of histories. Each returns what is wrong in the end of the history of a seed, or an empty text."""


def _fault(world: World, count: int, claims: int) -> str:
    return next(chain(_past_faults(world), _faults(world, count, claims)), "")


def _past_faults(world: World) -> Iterator[str]:
    """Yield what went wrong in a history without units that failed and without members that missed others."""
    epochs = [one.member.state.epoch for one in world.instances.values()]
    last = accepted_in(world)[-1].epoch
    if any(epoch != last for epoch in epochs):
        yield f"assignment {last} counts, instances have {epochs}"
    if world.longest_pause_s > PAUSE_S:
        yield f"a unit was not served for {world.longest_pause_s:.1f} s while an instance could have served it"


def _faults(world: World, count: int, claims: int) -> Iterator[str]:
    """Yield what is wrong in the end. ``count``: the number of instances. ``claims``: that of claims some time ago."""
    instances = list(world.instances.values())
    standbys = max(world.standbys_of.get(one.name, world.standbys) for one in instances)
    if world.standbys_ordered is not None:
        standbys = world.standbys_ordered
    if len({(one.member.state.epoch, str(one.member.state.units)) for one in instances}) != 1:
        yield "the instances disagree"
    if world.claims != claims:
        yield f"{world.claims - claims} claims long after the last fault"
    for unit in range(world.units):
        assigned = instances[0].member.state.units[unit]
        if (serving := world.servers(unit)) != [assigned.owner]:
            yield f"unit {unit} is assigned to {assigned.owner}, and served by {serving}"
        cold = [name for name in assigned.standbys if unit not in world.instances[name].warm]
        if len(assigned.standbys) != min(standbys, count - 1) or cold:
            yield f"unit {unit} has the standbys {assigned.standbys}, and {cold} are not warm"
        if (pin := world.pins.get(unit, assigned.owner)) != assigned.owner:
            yield f"unit {unit} is pinned to {pin}, and assigned to {assigned.owner}"
    yield from _uneven(world)
    yield from _unfollowed(world)


def _uneven(world: World) -> Iterator[str]:
    instances = world.instances.values()
    least = min(len(one.serves) for one in instances)
    for one in instances:
        if len(one.serves) > least + 1 and one.serves.keys() - world.pins.keys():
            yield f"{one.name} serves {sorted(one.serves)}, another one {least} units, and pinned are {world.pins}"


def _unfollowed(world: World) -> Iterator[str]:
    for one in world.instances.values():
        orders = one.member.state.orders
        if (orders.pinned, orders.standbys) != (world.pins, world.standbys_ordered):
            yield f"{one.name} knows the orders {orders}"
        if one.failed or one.unable:
            yield f"{one.name} takes the units {one.failed | one.unable} for failed"
