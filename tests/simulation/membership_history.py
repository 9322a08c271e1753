"""Plays random histories of a site: instances die, stall, slow down, leave and return, and records are lost.

Afterwards, the instances are left alone. Each unit must then be served by one instance, the one that is assigned, and
nothing may change any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Final

from tests.simulation.membership_world import World, accepted_in

START_S: Final = 3.0
TROUBLE_S: Final = 8.0
LONGEST_STALL_S: Final = 10.0
SETTLED_S: Final = 25.0
STILL_S: Final = 5.0
PAUSE_S: Final = 8.0
CALM_PAUSE_S: Final = 1.0
STALLS: Final = 30
STALL_EVERY_S: Final = 2.0
STALL_S: Final = 1.0
UNSTEADY_CLAIMS_MAX: Final = 30
BLINK_S: Final = (0.4, 0.6)
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
    random = Random(seed)
    world = World(seed, units=random.choice([1, 3, 8, 16]), standbys=random.choice([0, 1]))
    names = ["a0", "b0", "a1", "b1"][: random.choice([2, 3, 4])]
    for name in names:
        world.start(name)
    world.run(2 * START_S)
    claims = world.claims
    for _ in range(3):
        world.cut(random.choice([0.7, 1.5, 5, 20]))
        world.run(world.outage_s + START_S)
    if world.claims != claims:
        return f"{world.claims - claims} claims after an outage"
    return _fault(world, len(names), claims)


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


def _fault(world: World, count: int, claims: int) -> str:
    return next(_faults(world, count, claims), "")


def _faults(world: World, count: int, claims: int) -> Iterator[str]:
    instances = list(world.instances.values())
    standbys = max(world.standbys_of.get(one.name, world.standbys) for one in instances)
    accepted = accepted_in(world)
    if any(one.member.state.epoch != accepted[-1].epoch for one in instances):
        yield f"assignment {accepted[-1].epoch} counts, instances have {[one.member.state.epoch for one in instances]}"
    if world.longest_pause_s > PAUSE_S:
        yield f"a unit was not served for {world.longest_pause_s:.1f} s while an instance could have served it"
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
    loads = [len(one.serves) for one in instances]
    if max(loads) - min(loads) > 1:
        yield f"the loads are {loads}"
