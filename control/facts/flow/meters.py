"""How much flows through an application's topics, and who reads its results.

Turns counts read at known times into rates. Uses neither Kafka nor a clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from joiner.runtime.repartition.status import RepartitionStatus
from joiner.runtime.task.function_failures import FAILED, FAILED_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joiner.runtime.model import Checkpoint

RESULTS: Final = "out"
"""The result topic's key in `JoinerSettings.output_topics`."""


NOT_THERE: Final = "it does not exist"
"""Why the ends of a topic cannot be read before it has been created."""


class TopicFlow(msgspec.Struct, frozen=True):
    """What is appended to a topic, in offsets, including transaction markers.

    ``end``: the sum of its partitions' last stable offsets. ``rate``: offsets per second, or None if that is not known
    yet. ``quiet_s``: how long nothing has been appended, at least.
    """

    end: int
    rate: float | None
    quiet_s: float


class UnitFlow(msgspec.Struct, frozen=True):
    """What a unit reads and writes.

    ``consumed``: offsets per second, by input topic. ``lags``: the offsets not consumed yet, by input topic; None if
    not known. ``written``: records per second, by the setting that names the topic.
    """

    consumed: dict[str, float]
    lags: dict[str, int | None]
    written: dict[str, float]


class Move(msgspec.Struct, frozen=True):
    """A unit that is being moved from one site to another. ``is_released``: whether it has no owner at present."""

    source: str
    target: str
    is_released: bool


class GroupMember(msgspec.Struct, frozen=True):
    """A member of a consumer group, and the partitions that it reads."""

    name: str
    partitions: list[int]


class SinkFlow(msgspec.Struct, frozen=True):
    """What is known about the database connector's consumer group.

    ``lag``: the offsets of the result topic that it has not acknowledged, or None if that is not known. ``rate``: the
    offsets per second that it acknowledges, or None. ``stalled_s``: how long results have been waiting without any
    being acknowledged. ``others``: the partitions whose offset was committed for another database. ``fault``: why
    nothing is known, or an empty string.
    """

    members: list[GroupMember] = []
    lag: int | None = None
    rate: float | None = None
    stalled_s: float = 0.0
    others: list[int] = []
    fault: str = ""


class CopyFlow(msgspec.Struct, frozen=True):
    """What is known about repartitioning. ``topics``: by copied topic. ``fault``: why nothing is known, or empty."""

    topics: dict[str, RepartitionStatus] = {}
    fault: str = ""


class MergerFlow(msgspec.Struct, frozen=True):
    """The processes that merge replicas: the one with a partition merges, and the others wait for their turn.

    ``fault``: why they are not known, or an empty string.
    """

    members: list[GroupMember] = []
    fault: str = ""


class Flow(msgspec.Struct, frozen=True):
    """What flows where.

    ``topics``: the topics whose flow is known, by name. ``units``: by number; None for a unit that has never run or
    whose last checkpoint cannot be read. ``moves``: by unit. ``sink``: None if it is not configured or not known yet.
    ``missing``: the topics whose ends could not be read, with the cause. ``copies``: None if nothing is repartitioned
    or that is not known yet. ``merger``: None if nothing is merged or that is not known yet.
    """

    topics: dict[str, TopicFlow] = {}
    units: list[UnitFlow | None] = []
    moves: dict[int, Move] = {}
    sink: SinkFlow | None = None
    missing: dict[str, str] = {}
    copies: CopyFlow | None = None
    merger: MergerFlow | None = None


class Meter:
    """Measures how fast a count grows."""

    def __init__(self, window_s: float) -> None:
        """``window_s``: over how many seconds the rate is measured."""
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()
        self._grown_s = 0.0

    def note(self, now_s: float, count: int) -> None:
        """Note the count at ``now_s`` on a monotonic clock, later than the previous one."""
        samples = self._samples
        if not samples or samples[-1][1] != count:
            self._grown_s = now_s
        samples.append((now_s, count))
        # Keep one from before the window.
        while len(samples) > 2 and samples[1][0] <= now_s - self._window_s:  # noqa: PLR2004 - a rate needs two
            samples.popleft()

    def rate(self) -> float | None:
        """Return by how much the count grew per second, or None if it was noted only once."""
        if len(self._samples) < 2:  # noqa: PLR2004 - as above
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return _rate(last - first, last_s - first_s)

    def quiet_s(self) -> float:
        """Return how long the count had been unchanged when it was last noted."""
        return self._samples[-1][0] - self._grown_s if self._samples else 0.0


class SinkMeter:
    """Measures how far the database connector is behind the result topic."""

    def __init__(self, window_s: float, partitions: Iterable[int], target: str) -> None:
        """``window_s``: see `Meter`. ``target``: the prefix of the metadata of offsets committed for its database."""
        self.uncommitted: list[int] = []
        """The partitions without a committed offset, which are read from their beginning."""
        self._partitions = frozenset(partitions)
        self._target = target
        self._meter = Meter(window_s)
        self._follows_s: float | None = None
        """When an offset was last acknowledged, or the lag was last 0 or unknown."""

    def note(
        self,
        now_s: float,
        members: list[GroupMember],
        committed: Mapping[int, tuple[int, str]],
        starts: Mapping[int, int],
        ends: Mapping[int, int],
    ) -> SinkFlow:
        """Return what is known at ``now_s`` on a monotonic clock.

        ``committed``: the offset and its metadata, by partition. ``starts``, ``ends``: where the result topic's log
        begins and ends, by partition, where that is known.
        """
        self.uncommitted = sorted(self._partitions - committed.keys())
        done = {**starts, **{partition: offset for partition, (offset, _) in committed.items()}}
        lag = None
        if self._partitions <= done.keys() & ends.keys():
            # Offsets committed after the ends were read do not make the lag negative.
            lag = sum(max(0, ends[one] - done[one]) for one in self._partitions)
        acknowledged = sum(offset for offset, _ in committed.values())
        self._meter.note(now_s, acknowledged)
        if not lag or self._follows_s is None or self._meter.quiet_s() == 0:
            self._follows_s = now_s
        return SinkFlow(
            members=members,
            lag=lag,
            rate=self._meter.rate(),
            stalled_s=now_s - self._follows_s,
            others=sorted(one for one, (_, of) in committed.items() if not of.startswith(self._target)),
        )


class Committed(NamedTuple):
    """How far a unit had got at a commit. ``at_s``: when that was read, on a monotonic clock.

    ``records``: how many it had consumed. ``offsets``: up to which offsets, by input topic. ``written``: how many it
    had written, by the setting that names the topic.
    """

    at_s: float
    records: int
    offsets: dict[str, int]
    written: dict[str, int]

    @classmethod
    def of(cls, checkpoint: Checkpoint, now_s: float) -> Committed:
        """Return the counts in a checkpoint that is read now."""
        pairs, rows, failed_pairs, failed_rows, rejected, late, unmatched = (
            checkpoint.counts.get(name, 0)
            for name in ("pairs", "rows", FAILED, FAILED_ROWS, "rejected", "late", "unmatched")
        )
        failed = failed_pairs + failed_rows
        written = {
            RESULTS: pairs + rows - failed,
            "late": late,
            "unmatched": unmatched,
            # Each pair or row whose function failed is a dead letter.
            "rejected": rejected + failed,
        }
        return cls(now_s, checkpoint.counts.get("records", 0), checkpoint.offsets, written)


class UnitMeter:
    """Measures how fast a unit consumes and writes."""

    def __init__(self, window_s: float) -> None:
        """See `Meter`."""
        self._window_s = window_s
        self._commits: deque[Committed] = deque()

    def note(self, checkpoint: Checkpoint, now_s: float) -> None:
        """Note the unit's last checkpoint at ``now_s`` on a monotonic clock, later than the previous one."""
        commits = self._commits
        commits.append(Committed.of(checkpoint, now_s))
        # Keep one from before the window.
        while len(commits) > 1 and commits[1].at_s <= now_s - self._window_s:
            commits.popleft()

    def rate(self) -> float:
        """Return how many records per second the unit consumes."""
        if not self._commits:
            return 0.0
        first, last = self._commits[0], self._commits[-1]
        return _rate(last.records - first.records, last.at_s - first.at_s)

    def flow(self, lags: Mapping[str, int | None]) -> UnitFlow | None:
        """Return what the unit reads and writes, or None if no checkpoint was noted. ``lags``: as in `UnitFlow`."""
        if not self._commits:
            return None
        first, last = self._commits[0], self._commits[-1]
        took_s = last.at_s - first.at_s
        return UnitFlow(
            {topic: _rate(at - first.offsets.get(topic, at), took_s) for topic, at in last.offsets.items()},
            dict(lags),
            {kind: _rate(count - first.written[kind], took_s) for kind, count in last.written.items()},
        )


def _rate(count: int, took_s: float) -> float:
    # Counts start over if a unit is reset or a topic is recreated.
    return max(0, count) / took_s if took_s > 0 else 0.0
