"""Processes that repartition, in a simulated world: the production code, with the in-memory clients."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client import CollectorRegistry

from broker.kafka import topics
from broker.metrics import Readings
from joiner.runtime.kafka import clients
from joiner.runtime.repartition import copies, merging, repartitioner, source
from joiner.runtime.repartition.repartitioner import Repartitioner, RepartitionMetrics
from joiner.runtime.settings import JoinerSettings
from tests.simulation.bugs import changed
from tests.simulation.stage import on_stage
from tests.simulation.world import World

APPLICATION: Final = "sim"

BATCH_MESSAGES: Final = 6
HELD_BYTES: Final = 8_000
"""So small that partitions that are ahead of others are paused, even in a short history."""


class Copier:
    """The command ``joiner repartition``. See `Program`."""

    def __init__(self, world: World, settings: JoinerSettings) -> None:
        metrics = RepartitionMetrics(Readings(CollectorRegistry()))
        self._repartitioner = Repartitioner(settings, world.clock, metrics)

    def run(self) -> int:
        """See `Program`."""
        self._repartitioner.run()
        return 0

    def stop(self) -> None:
        """See `Program`."""
        self._repartitioner.stop()


class _Stop:
    """Stands in for `threading.Event`. Simulated time passes while it is waited for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def is_set(self) -> bool:
        """See `threading.Event`."""
        return self._is_set

    def set(self) -> None:
        """See `threading.Event`."""
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        """See `threading.Event`."""
        if not self._is_set:
            self._world.clock.sleep(seconds)
        return self._is_set


@contextmanager
def on_copy_stage(world: World) -> Iterator[None]:
    """Patch the modules of `joiner.runtime.repartition` to run in ``world``."""
    replaced: list[tuple[Any, str, Any]] = [
        (repartitioner, "threading", SimpleNamespace(Event=lambda: _Stop(world))),
        (topics, "time", SimpleNamespace(monotonic=world.clock.monotonic_s, sleep=world.clock.sleep)),
        # Called in the same thread, because no other thread may run now.
        *((module, "within", lambda _seconds, call, *arguments: call(*arguments)) for module in (copies, clients)),
        (source, "_BATCH_MESSAGES", BATCH_MESSAGES),
        (merging, "HELD_BYTES_MAX", HELD_BYTES),
    ]
    with ExitStack() as stack:
        stack.enter_context(on_stage(world))
        for owner, name, value in replaced:
            stack.enter_context(changed(owner, name, value))
        yield


def make_copy_settings(draw: random.Random, start: str) -> JoinerSettings:
    """Return the settings of a history: one or two topics, which are copied to few partitions.

    ``start``: where the application starts.
    """
    stream = {"key": "$.id", "time": "kafka.timestamp", "value": "$.v", "repartition": True}
    both = draw.random() < 0.5
    return JoinerSettings.model_validate(
        {
            "topics": {"partitions": draw.choice([1, 2, 3])},
            "application": {
                "name": APPLICATION,
                "commit_interval": draw.choice(["20ms", "200ms"]),
                "start": start,
            },
            "join": [{"name": "power", "left": "speed", "right": "torque", "function": "product", "output": "p"}],
            "stream": [
                {"name": "speed", "topic": "plant", **stream},
                *([{"name": "torque", "topic": "orders", **stream}] if both else []),
            ],
        }
    )
