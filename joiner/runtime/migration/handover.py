"""A runner's part in moves: what it prepares, releases, claims and waits for. Everything slow is in its pool.

Its loop polls, so nothing here may wait: a unit that comes or goes must not hold up the others. Which step is next is
not decided here (see `protocol`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from confluent_kafka import KafkaException

from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import describe
from joiner.runtime.kafka.readers import reading
from joiner.runtime.migration.coordinator import Coordinator
from joiner.runtime.migration.protocol import Release
from joiner.runtime.model import Checkpoint, OnTheWay, UnitStopped
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.services import Services
from joiner.runtime.ownership.warmup import Warm, warm_up
from joiner.runtime.settings import JoinerSettings

LOOK_S: Final = 2.0
"""From one look whose the units are that we wait for to the next: so late is one claimed whose Released was missed."""

_QUIET_S: Final = 0.5
"""A unit that was taken and has had nothing to commit for so long goes on all the same."""

_Outcome = TypeVar("_Outcome")

_log = logging.getLogger(__name__)


class Serving(Protocol):
    """A unit that a runner serves."""

    first_commit_s: float
    """When the first transaction behind the claim was found written (monotonic); 0: none was yet."""


class Host(Protocol):
    """What moves ask of a runner; all but `prepare` by its own thread. See `runners.supervisor`."""

    @property
    def tasks(self) -> Mapping[int, Serving]:
        """The units that are run."""
        ...

    @property
    def claiming(self) -> AbstractSet[int]:
        """The units that are being claimed and restored."""
        ...

    def prepare(self, unit: int) -> None:
        """Prepare for running it."""
        ...

    def begin_claim(self, unit: int, claimant: Claimant | None, warm: Warm | None) -> bool:
        """Begin to claim and restore it, with what is prepared, which is the host's to close then. It is run when that
        is done. False: it is under way already.
        """
        ...

    def release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """Begin to write the last transaction, with a snapshot, and call when it is written; from then on the unit is
        not run. None: it goes on, for it cannot be released now.
        """
        ...

    def give_up(self, unit: int, error: Exception) -> None:
        """A commit has failed."""
        ...

    def schedule_claim(self, unit: int) -> None:
        """The unit may be claimed by the ordinary procedure."""
        ...

    def why_failed(self, unit: int) -> str:
        """Why the unit cannot go on here; empty where it can."""
        ...


class Handover:
    """The units of a runner that come and go by moves, and those that it waits for."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        host: Host,
        services: Services,
        *,
        standby: bool,
    ) -> None:
        """``standby``: units of other sites are waited for."""
        self.is_standby = standby
        self._settings = settings
        self._claimant = claimant
        self._host = host
        self._services = services
        self._mover = Coordinator(claimant, self, services.control)
        # Those of other sites, with the moment at which it is looked again whose they are.
        self._elsewhere: dict[int, float] = {}
        self._told: set[int] = set()
        # Told by the pool's threads, in the order of their finding.
        self._found: deque[tuple[int, Checkpoint]] = deque()
        self._warm: dict[int, Warm] = {}
        self._warming: dict[int, Future[Warm | None]] = {}
        self._releases: dict[int, Future[None]] = {}
        self._look: Future[dict[int, Checkpoint | None]] | None = None
        # Those that were taken, and since when.
        self._resumed_s: dict[int, float] = {}

    @property
    def busy(self) -> set[int]:
        """Units that are not to be claimed for now but by a move."""
        return self._elsewhere.keys() | self._releases.keys() | self._mover.leaving

    @property
    def elsewhere(self) -> AbstractSet[int]:
        """Units of other sites."""
        return self._elsewhere.keys()

    @property
    def releasing(self) -> AbstractSet[int]:
        """Units whose last transaction is on its way."""
        return self._releases.keys()

    @property
    def claimed_by_others(self) -> set[int]:
        """Units that another runner is claiming, as far as is known."""
        return self._mover.claimed_by_others

    def poll(self, units: AbstractSet[int]) -> None:
        """Do what is due; ``units``: those that this runner is to serve."""
        while self._found:
            number, checkpoint = self._found.popleft()
            self._mover.found(number, checkpoint)
        _settle(self._warming, self._after_warm_up)
        _settle(self._releases, self._after_release)
        self._look_whose_they_are()
        self._mover.poll(self._host.tasks.keys(), units - self._host.tasks.keys(), self._host.claiming)
        self._report_resumed()
        self._report_refused()

    def found_elsewhere(self, number: int, checkpoint: Checkpoint) -> bool:
        """A claim has found that a unit belongs to another site: whether it is waited for. Any thread."""
        way = checkpoint.on_the_way
        waits = self.is_standby or (way is not None and way.source == self._claimant.site)
        if waits and number not in self._told:
            self._told.add(number)
            _log.info("unit %s: %s; waiting until it is moved here", number, checkpoint.owner)
        self._elsewhere[number] = time.monotonic() + LOOK_S
        self._found.append((number, checkpoint))
        return waits

    def adopted(self, number: int) -> None:
        """The runner serves a unit from now on."""
        self._told.discard(number)
        self._elsewhere.pop(number, None)
        self._resumed_s[number] = time.monotonic()

    def give_back(self, units: list[int]) -> None:
        """These go to other processes of the site."""
        for number in units:
            self._elsewhere.pop(number, None)
            self._resumed_s.pop(number, None)
            self._told.discard(number)
        self._mover.forget(units)

    # What moves ask for, see `coordinator.Runner`

    def release(self, action: Release) -> None:
        """The unit is not served any more once its last transaction is written."""
        release = self._host.release(action, lambda: self._mover.control.write(action.told))
        if release is None:
            self._mover.kept(action.unit)
        else:
            self._releases[action.unit] = release

    def reclaim(self, unit: int, way: OnTheWay) -> None:
        """Claim it with the right to take back."""
        self._begin_claim(unit, replace(self._claimant, back=way))

    def warm_up(self, unit: int) -> None:
        """In the pool."""
        if unit not in self._warming:
            self._warming[unit] = self._services.pool.submit(self._prepare, unit)

    def cool_down(self, unit: int) -> None:
        """Its producer goes when nobody holds it."""
        warm = self._warm.pop(unit, None)
        if warm is not None:
            warm.readers.close()

    def claim(self, unit: int) -> None:
        """With what was prepared."""
        self._begin_claim(unit, self._claimant)

    # Outcomes

    def _begin_claim(self, number: int, claimant: Claimant) -> None:
        if number not in self._host.tasks and self._host.begin_claim(number, claimant, self._warm.get(number)):
            self._warm.pop(number, None)

    def _prepare(self, number: int) -> Warm | None:
        self._host.prepare(number)
        return warm_up(
            self._settings, number, self._services.admin, self._services.group_metadata_consumer, self._claimant
        )

    def _after_warm_up(self, number: int, warming: Future[Warm | None]) -> None:
        # Not raised: it would know this frame, which knows it, and keep what was prepared (see `runners.commit`).
        match error := warming.exception():
            case None:
                warm = warming.result()
                if warm is None:
                    self._mover.dropped(number)
                    return
                self._warm[number] = warm
                self._mover.warmed(number)
            case UnitStopped():
                self._mover.failed(number, str(error))
            case Exception():
                # It is tried again with the next request.
                _log.warning("unit %s: its state cannot be built now: %s", number, describe(error))
                self._mover.dropped(number)
            case _:
                raise error

    def _after_release(self, number: int, release: Future[None]) -> None:
        # From now on it waits for units to come back; also where it cannot know whether it has released this one.
        self.is_standby = True
        error = release.exception()
        if error is None:
            self._elsewhere[number] = time.monotonic() + LOOK_S
            self._mover.released(number)
            return
        # Whether it was written is seen when the unit is claimed anew.
        self._mover.kept(number)
        if not isinstance(error, Exception):
            raise error
        self._host.give_up(number, error)

    def _look_whose_they_are(self) -> None:
        if self._look is not None and self._look.done():
            look, self._look = self._look, None
            for number, checkpoint in look.result().items():
                if number in self._elsewhere and number not in self._host.claiming:
                    self._after_look(number, checkpoint)
        now_s = time.monotonic()
        # Listed, for a claim that ends may add to them.
        due = [number for number, look_s in list(self._elsewhere.items()) if look_s <= now_s]
        if due and self._look is None:
            self._elsewhere.update(dict.fromkeys(due, now_s + LOOK_S))
            self._look = self._services.pool.submit(self._read, due)

    def _read(self, numbers: list[int]) -> dict[int, Checkpoint | None]:
        """The checkpoints of some units, as far as Kafka answers, by one consumer."""
        kafka, name, topic = self._settings.kafka, self._settings.application.name, self._settings.state_topic
        found: dict[int, Checkpoint | None] = {}
        with reading(self._settings, None) as readers:
            for number in numbers:
                try:
                    found[number] = read_checkpoint(kafka, name, topic, number, readers)
                except UnitStopped:
                    found[number] = None  # whoever takes it, is told
                except KafkaException as error:
                    _log.debug("unit %s: whose it is cannot be read now: %s", number, describe(error))
                    break
        return found

    def _after_look(self, number: int, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None or self._claimant.may_continue(checkpoint):
            del self._elsewhere[number]
            self._host.schedule_claim(number)
        else:
            self._mover.found(number, checkpoint)

    def _report_refused(self) -> None:
        for number in self._mover.arriving:
            if why := self._host.why_failed(number):
                self._mover.failed(number, why)

    def _report_resumed(self) -> None:
        now_s = time.monotonic()
        for number, resumed_s in list(self._resumed_s.items()):
            owned = self._host.tasks.get(number)
            if owned is None:
                del self._resumed_s[number]
            elif owned.first_commit_s or now_s - resumed_s > _QUIET_S:
                del self._resumed_s[number]
                self._mover.goes_on(number, int(1000 * (now_s - (owned.first_commit_s or resumed_s))))


def _settle(futures: dict[int, Future[_Outcome]], then: Callable[[int, Future[_Outcome]], None]) -> None:
    """Take out those that are done."""
    for number, future in [(number, future) for number, future in futures.items() if future.done()]:
        del futures[number]
        then(number, future)
