"""Orders that operators give while processes run: pins, standbys, drained instances, and other attempts at a unit."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from joiner.runtime.control import Drain, Pin, Retry, Standbys, encode
from joiner.runtime.settings import JoinerSettings
from tests.simulation.world import World

_SHARE: Final = 0.2
"""The share of histories in which orders are given."""
_RATE: Final = 0.01


class Orders:
    """Gives orders in some histories. Its randomness is its own, so that the other histories do not depend on it."""

    def __init__(self, world: World, settings: JoinerSettings, seed: int, names: list[str]) -> None:
        """``names``: the instances that there may be."""
        self._world, self._settings, self._names = world, settings, names
        self._draw = random.Random(f"orders {seed}")
        self._are_given = self._draw.random() < _SHARE

    def step(self) -> None:
        """Give an order now and then."""
        if self._are_given and self._draw.random() < _RATE:
            self._give(self._draw_order())

    def _draw_order(self) -> msgspec.Struct:
        site, draw = self._settings.application.site, self._draw
        unit, name = draw.randrange(self._settings.topics.partitions), draw.choice(self._names)
        return draw.choice(
            [
                Pin(site=site, unit=unit, instance=name),
                Pin(site=site, unit=unit),
                Standbys(site=site, count=draw.choice([0, 1, 2, None])),
                Drain(site=site, instance=name, drained=draw.random() < 0.5),
                Retry(site=site, unit=unit),
                Retry(site=site, unit=unit),
            ]
        )

    def _give(self, order: msgspec.Struct) -> None:
        self._world.kafka.append(self._settings.control_topic, 0, None, encode(order))
        self._world.counts[f"order {type(order).__name__}"] += 1
        self._world.note("order %s", order)
