"""Generates a data set of any size that resembles a recording of real machines, in the format of `events.json`.

The machines are spindles that run, change speed and pause. Quantities are sampled by different clocks, so speed and
torque are usually in different events, and sometimes in the same one. There are also late events, repeated events,
events with equal timestamps, and gaps in which a quantity is not sampled; the share of each is configurable, down to
0. There are no invalid lines. Power is computed from speed and torque, and load and current are proportional to torque;
there is no other physics.

The same arguments, including the seed, produce the same bytes on every machine. The only random functions used are
`random.Random.random` and `getrandbits`, whose sequences Python guarantees, and all arithmetic is plain, without a
maths library. Only the standard library is needed, and only events that are held back are kept in memory.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from simulator.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXAMPLES = """\
examples:
  python -m simulator.generate                                     100,000 events of 3 machines to events.json
  python -m simulator.generate --events 2000000 --seed 7 --machines 50 --out big.json
  python -m simulator.generate --disorder 0 --repeats 0 --equal 0 --gaps 0 --out clean.json

Exit status: 0 written, 1 not written, 2 invalid settings (the file is unchanged)."""

FIRST_TIMESTAMP_MS = 1_554_096_380_468
"""The first timestamp of the recording that the data set imitates: 1 April 2019."""
TOGETHER_MS = 25
"""If several samples of a machine are due within this time, they are sent in the same event."""
SHARE_MAX = 0.9
"""Maximum for each share. If all events were repeated or had equal times, time would never advance."""

_CLOCKS_MS = (
    (1_000, ("actSpeed_C11",)),
    (1_030, ("vaTorque_C11", "vaLoad_C11", "vaCurr_C11")),
    (1_300, ("cmdSpeed_C11",)),
    (1_700, ("vaPower_C11",)),
)
"""For each sampling clock, its period in ms and the quantities it samples."""
_SAMPLED = 0.9
"""Probability that a sample includes a given quantity. Otherwise the quantity is left out, as if it had not changed."""
QUANTITIES = tuple(name for _, names in _CLOCKS_MS for name in names)
"""The quantities that every machine has, named as in the recording."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Describes the data set to generate. Shares are fractions of all events, from 0 to 0.9. Times are in ms.

    Raises ValueError if any arguments are out of range. The message names each of them.
    """

    events: int = field(default=100_000, metadata={"help": "lines to write"})
    seed: int = field(default=0, metadata={"help": "the same seed produces the same bytes"})
    machines: int = field(default=3, metadata={"help": "number of machines"})
    disorder: float = field(default=0.01, metadata={"help": "share of late events"})
    lag_ms: int = field(default=5_000, metadata={"help": "maximum lateness, in event time"})
    repeats: float = field(default=0.001, metadata={"help": "share of events that are repeated with the same id"})
    equal: float = field(
        default=0.001, metadata={"help": "share of events with the same time as the previous event, but a new id"}
    )
    gaps: float = field(default=0.0005, metadata={"help": "probability that a gap follows a sample"})
    gap_ms: int = field(default=60_000, metadata={"help": "longest gap in a quantity"})
    start_ms: int = field(default=FIRST_TIMESTAMP_MS, metadata={"help": "first time, ms since 1970"})

    def __post_init__(self) -> None:
        errors = [
            f"{name} must be a share from 0 to {SHARE_MAX}, not {share}"
            for name, share in self._shares()
            if not 0 <= share <= SHARE_MAX
        ]
        errors += [
            f"{name} must be a whole number from {low} to {high}, not {value}"
            for name, value, low, high in (
                ("events", self.events, 0, 10**12),
                ("machines", self.machines, 1, 1_000_000),
                ("lag_ms", self.lag_ms, 1, 10**9),
                ("gap_ms", self.gap_ms, 1, 10**9),
                ("start_ms", self.start_ms, -(10**12), 10**13),
            )
            if not low <= value <= high
        ]
        if errors:
            raise ValueError("; ".join(errors))

    def _shares(self) -> tuple[tuple[str, float], ...]:
        return (
            ("disorder", self.disorder),
            ("repeats", self.repeats),
            ("equal", self.equal),
            ("gaps", self.gaps),
        )


def generate(plan: Plan) -> Iterator[bytes]:
    """Yield the lines of the data set, without newlines, in the order they are sent.

    A late event is held back until at least one event with a later time has been sent.
    """
    return islice(_disordered(plan), plan.events)


def generate_events(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the events of the data set as dictionaries: Thing, Timestamp (ms), the quantities, and id."""
    return map(json.loads, generate(plan))


def write(plan: Plan, path: Path) -> None:
    """Generate the data set and write it to `path` atomically. Raises OSError."""
    with replacing(path) as file:
        file.writelines(line + b"\n" for line in generate(plan))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 1 if the file was not written. Invalid settings exit with status 2."""
    parser = argparse.ArgumentParser(
        prog="python -m simulator.generate",
        description="Generate a reproducible data set in the format of events.json.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, default=Path("events.json"), help="the file (default events.json)")
    for each in fields(Plan):
        text = f"{each.metadata['help']} (default {each.default})"
        parser.add_argument(
            f"--{each.name.replace('_', '-')}", type=type(each.default), default=each.default, help=text
        )
    given = vars(parser.parse_args(arguments))
    path: Path = given.pop("out")
    try:
        plan = Plan(**given)
    except ValueError as error:
        parser.error(str(error))
    try:
        write(plan, path)
    except OSError as error:
        print(f"generate: {path} was not written: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"generate: stopped; {path} is unchanged", file=sys.stderr)
        return 1
    print(f"generate: {plan.events:,} events of {plan.machines:,} machines in {path}")
    return 0


class _Spindle:
    """Simulates one machine. Its speed drifts, and about once a minute it changes to another speed or pauses."""

    def __init__(self, random: Random) -> None:
        self._random = random.random
        self._until_ms = 0
        self._command = 0.0
        self._speed = 0.0
        self._torque = 0.0
        self._target_torque = 0.0
        self._now_ms = 0

    def move_to(self, now_ms: int) -> None:
        """Advance the simulation to `now_ms`, moving speed and torque closer to their target values."""
        if now_ms >= self._until_ms:
            self._until_ms = now_ms + 5_000 + int(self._random() * 110_000)
            running = self._random() < 0.75  # noqa: PLR2004 - pauses for a quarter of the time
            self._command = 60.0 + int(self._random() * 1_200) if running else 0.0
            self._target_torque = 1.0 + self._random() * 9.0 if running else 0.0
        part = min(1.0, (now_ms - self._now_ms) / 1_500)
        self._now_ms = now_ms
        self._speed += (self._command - self._speed) * part
        self._torque += (self._target_torque - self._torque) * part
        self._target_torque += (self._random() - 0.5) * 0.1

    def sample(self, quantity: str) -> float:
        """Return the value of a quantity, with noise."""
        noise = self._random() - 0.5
        match quantity:
            case "actSpeed_C11":
                return round(self._speed + noise * (0.5 if self._command else 0.02), 10)
            case "cmdSpeed_C11":
                return self._command
            case "vaTorque_C11":
                return round(self._torque + noise * 0.3, 3)
            case "vaLoad_C11":
                return round(self._torque * 0.36 + noise * 0.1, 12)
            case "vaCurr_C11":
                return round(self._torque * 0.3 + noise * 0.08, 12)
            case _:  # power in W: 2 pi / 60 times speed times torque
                return round(0.10471975511965977 * self._speed * self._torque + noise, 10)


class _Machine:
    """Generates the events of one machine in time order. Samples due within 25 ms of each other share an event."""

    def __init__(self, thing: str, plan: Plan, random: Random) -> None:
        self.thing = thing
        self._plan = plan
        self._random = random
        self._spindle = _Spindle(random)
        # The clocks of each machine run slightly fast or slow, and start with a random phase.
        pace = 0.9 + random.random() * 0.2
        self._periods_ms = [int(period_ms * pace) for period_ms, _ in _CLOCKS_MS]
        self._due_ms = [plan.start_ms + int(random.random() * period) for period in self._periods_ms]
        self._silent_until_ms = dict.fromkeys(QUANTITIES, plan.start_ms)
        self.next_ms = min(self._due_ms)
        self._names: list[str] = []

    def event(self) -> tuple[int, str]:
        """Generate the next event. Return its time, and its quantities as JSON text (empty if none was sampled)."""
        now_ms = self.next_ms
        self._names = []
        for clock, due_ms in enumerate(self._due_ms):
            if due_ms <= now_ms + TOGETHER_MS:
                self._names += [name for name in _CLOCKS_MS[clock][1] if self._is_sampled(name, now_ms)]
                period_ms = self._periods_ms[clock]
                jitter_ms = int((self._random.random() - 0.5) * 0.02 * period_ms)
                self._due_ms[clock] = now_ms + period_ms + jitter_ms
        self._spindle.move_to(now_ms)
        self.next_ms = min(self._due_ms)
        return now_ms, self.values()

    def values(self) -> str:
        """Sample the quantities of the current event. Return them as JSON text; each call returns new values."""
        return ", ".join([f'"{name}": {self._spindle.sample(name)!r}' for name in self._names])

    def _is_sampled(self, name: str, now_ms: int) -> bool:
        draw = self._random.random
        if now_ms < self._silent_until_ms[name] or draw() >= _SAMPLED:
            return False
        if self._plan.gaps and draw() < self._plan.gaps:
            self._silent_until_ms[name] = now_ms + 1 + int(draw() * self._plan.gap_ms)
        return True


def _in_time_order(plan: Plan, random: Random) -> Iterator[tuple[int, bytes]]:
    """Yield the events of all machines in time order, endlessly. Some events have equal times."""
    width = max(4, len(str(815 + plan.machines)))
    machines = [_Machine(f"R{815 + n:0{width}d}", plan, random) for n in range(plan.machines)]
    queue = [(machine.next_ms, n) for n, machine in enumerate(machines)]
    heapq.heapify(queue)
    while True:
        _, n = queue[0]
        machine = machines[n]
        now_ms, values = machine.event()
        if values:
            yield now_ms, _line(machine.thing, now_ms, values, random)
        while values and plan.equal and random.random() < plan.equal:
            yield now_ms, _line(machine.thing, now_ms, machine.values(), random)
        heapq.heapreplace(queue, (machine.next_ms, n))


def _disordered(plan: Plan) -> Iterator[bytes]:
    """Yield lines endlessly, in the order they are sent: some events are held back, some are repeated."""
    # These decisions use their own random sequence, so that disorder and repeats do not affect the machines.
    random = Random(f"delivery {plan.seed}")
    draw = random.random
    held: list[tuple[int, int, bytes]] = []
    late_share, repeat_share = plan.disorder, plan.repeats
    for number, (now_ms, line) in enumerate(_in_time_order(plan, Random(f"machines {plan.seed}"))):
        if repeat_share and draw() < repeat_share:
            heapq.heappush(held, (now_ms + int(draw() * plan.lag_ms), number, line))
        if late_share and draw() < late_share:
            heapq.heappush(held, (now_ms + 1 + int(draw() * plan.lag_ms), number, line))
            continue
        yield line
        while held and held[0][0] < now_ms:
            yield heapq.heappop(held)[2]


def _line(thing: str, now_ms: int, values: str, random: Random) -> bytes:
    digits = f"{random.getrandbits(128):032x}"
    # Formatted like a random UUID (version 4).
    event_id = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
    return f'{{"Thing": "{thing}", "Timestamp": {now_ms}, {values}, "id": "{event_id}"}}'.encode()


if __name__ == "__main__":
    sys.exit(main())
