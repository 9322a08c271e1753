"""The pipeline with replicas, and the acts that only replicas have.

simulator -> MQTT -> connector -> Kafka <-> joiners of each replica <-> Kafka <-> joiner merge
                                                                        Kafka -> db_connector -> InfluxDB

All processes that write to Kafka may have faults. `replica_schedule` says when a replica may be reset.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException

from broker.settings import load_settings
from joiner.runtime.settings import JoinerSettings
from tests.chaos.pipeline import ChaosPipeline
from tests.chaos.play import Play
from tests.chaos.schedule import Act
from tests.chaos.settling import DEADLINE_S
from tests.integration.merging import ends_of_replica, has_returned, is_complete, is_settled, merging
from tests.integration.services import run_service, wait_until

_RESETS_MAX: Final = 3
"""A reset says that it is to be repeated if Kafka has been too slow."""


class ReplicasPlay(Play):
    """Runs the acts of a schedule against a pipeline with replicas."""

    def __init__(self, pipeline: ChaosPipeline, acts: list[Act]) -> None:
        super().__init__(pipeline, acts)
        self._away = {act.target for act in acts if act.fault == "join"}
        self._dispensable = frozenset()
        self._application = pipeline.applications[0]
        self._settings = load_settings(JoinerSettings, pipeline.config)
        self._skipped: set[Act] = set()

    def _signs_of_life(self) -> list[tuple[str, str]]:
        """Return one instance of each replica, too. See `Play`."""
        first = [instances[0] for instances in self._application.further]
        return [*super()._signs_of_life(), *((name, ": claimed") for name in first if name not in self._away)]

    def _begin(self, act: Act) -> None:
        if self._replayed and act.fault != "join":
            # Without data, a fault tests nothing, and a replica that was reset does not become complete again.
            self._skip(act)
        elif act.fault == "reset":
            self._reset(act, _number(act))
        else:
            super()._begin(act)

    def _skip(self, act: Act) -> None:
        self._skipped.add(act)
        self._note("skipped, because all data was sent", act.target, act.fault)

    def _end(self, act: Act) -> None:
        if act not in self._skipped:
            super()._end(act)

    def _begin_on_service(self, act: Act) -> None:
        if act.fault != "lose":
            super()._begin_on_service(act)
            return
        for name in self._application.replicas[_number(act)]:
            self._away.add(name)
            self._pipeline.kill(name)
            self.played.kills += 1

    def _end_on_service(self, act: Act) -> None:
        super()._end_on_service(act)
        if act.fault == "lose":
            self._away -= {*self._application.replicas[_number(act)]}

    def _reset(self, act: Act, number: int) -> None:
        """Reset a replica as docs/replicas.md says: while the others are settled, and with its processes stopped.

        The schedule's time stands still until the replica is complete again.
        """
        began_s = time.monotonic()
        instances = self._application.replicas[number]
        others = [other for other in range(len(self._application.replicas)) if other != number]
        ports = self._pipeline.ports
        self._server_faults.wait()
        before = {other: ends_of_replica(self._settings, other) for other in others}
        self._wait_for(
            lambda: not self._armed and all(is_settled(self._settings, other, before[other]) for other in others),
            f"the replicas {others} are complete, and have committed in all units",
        )
        if self._replayed:
            self._skip(act)
            return
        for name in instances:
            self._away.add(name)
            self._stop(name)
        self._run_reset(number)
        self.played.others += 1
        self._note(act.fault, act.target)
        ends = ends_of_replica(self._settings, number)
        self._away -= {*instances}
        self._supervise()
        if act.point and (name_of_merger := merging(ports)) is not None:
            self._kill(name_of_merger, f"{act.target} was reset")
        self._wait_for(
            lambda: has_returned(self._settings, number, ends) and is_complete(self._settings, ports, number),
            f"{act.target} is complete again",
        )
        self._note("complete again", act.target)
        self._began_s += time.monotonic() - began_s

    def _run_reset(self, number: int) -> None:
        given = "reset", "--replica", str(number), "--yes", "--config", str(self._pipeline.config)
        for _ in range(_RESETS_MAX):
            done = run_service("joiner", *given, environment={})
            if done.returncode == 0:
                return
        raise AssertionError(f"{' '.join(given)}: {done.stdout}{done.stderr}")

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, or all data has been sent."""

        def is_there() -> bool:
            self._supervise()
            try:
                return self._replayed or condition()
            except KafkaException:
                return False

        wait_until(is_there, what, DEADLINE_S)


def _number(act: Act) -> int:
    """Return the number of the replica that an act is about."""
    return int(act.target.removeprefix("replica "))
