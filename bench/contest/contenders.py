"""The contenders: their commands, windows and limitations.

A contender is a list of commands, which all get the same `Job` and are observed from outside. A peer is a script in
bench/peers or bench/peers/jvm, run as ``PYTHON NAME.py BOOTSTRAP DATA OUT --partitions N --state FOLDER
[--width-ms W] [--variant V] …``. If its environment cannot be created, the report says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from bench.contest.workload.expected import NO_WINDOW, Window
from bench.contest.workload.inputs import Workload
from bench.harness.pipeline import PARTITIONS, Application
from bench.kafka import BATCH
from bench.peers import environments
from bench.peers.jvm import programs
from broker.settings import KafkaSettings
from broker.stack.errors import StackError
from broker.stack.parts import Parts, parts_folder
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.readers import Readers

ROOT: Final = Path(__file__).parents[2]
PEERS: Final = ROOT / "bench" / "peers"
CACHE: Final = Path(".lsb")


SPARK_LATENESS_MS: Final = 10_000
"""Lateness for Spark, whose partitions progress to different event times but share one watermark."""


class NotHereError(Exception):
    """The contender cannot run here. The message is the reason."""


@dataclass(frozen=True)
class Job:
    """A task for a contender. ``folder`` is not shared with other jobs, and ``name`` is unique."""

    kafka: KafkaSettings
    folder: Path
    name: str
    data: str
    records: int
    lateness_ms: int = 0
    watermark_scope: str = "key"
    width_ms: int = 0
    is_for_latency: bool = False

    @property
    def out(self) -> str:
        """The topic for its results."""
        return f"{self.name}.out"

    @property
    def state(self) -> Path:
        """The folder for its state."""
        return self.folder / "state"

    def of(self, workload: Workload) -> Job:
        """Return the same job with the lateness and watermark scope of a workload."""
        return replace(self, lateness_ms=workload.lateness_ms, watermark_scope=workload.watermark_scope)


@dataclass(frozen=True)
class Contender:
    """An engine with its settings.

    ``commands`` returns the commands of its processes, which run in parallel. ``has_window``: its results depend on the
    width. ``widths``: if above 1, its windows form a grid, each this many widths wide. ``gives_window``: it writes all
    pairs in its window. ``topics`` is 2 if each side needs its own topic. ``held`` returns its state at the end.
    ``patience`` multiplies the time limit. ``waits_ms`` is how much event time must pass before a result is emitted.
    ``variants`` are other settings to try.
    """

    name: str
    what: str
    commands: Callable[[Job], list[list[str]]]
    lacks: str = ""
    has_window: bool = False
    widths: int = 1
    gives_window: bool = False
    topics: int = 1
    held: Callable[[Job], dict[str, float]] = lambda _: {}
    patience: float = 1.0
    waits_ms: int = 0
    variants: tuple[Contender, ...] = ()

    def window(self, width_ms: int) -> Window:
        """Return the window in which the contender finds pairs, for ``width_ms`` to each side."""
        return Window(self.widths * width_ms, is_grid=self.widths > 1) if self.has_window else NO_WINDOW

    @property
    def slug(self) -> str:
        """The name in a form for topic and file names."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())


def _application(job: Job, cores: int = 2) -> Application:
    application = Application(job.kafka, job.folder, job.name, PARTITIONS, data=job.data)
    of_join = f'lateness = "{job.lateness_ms}ms"\nwatermark_scope = "{job.watermark_scope}"\n'
    application.add_settings(f'{of_join}\n[spark]\nmaster = "local[{cores}]"\ncheckpoint = "{job.state}"\n')
    return application


def _joiner(job: Job, *, command: str = "run", processes: int = 1, cores: int = 2) -> list[list[str]]:
    application = _application(job, cores)
    return [application.command(instance=str(number), command=command) for number in range(processes)]


def _held(job: Job) -> dict[str, float]:
    """Return the total size of the newest snapshots, and the number of records held at the last commits."""
    length = rows = 0
    try:
        with closing(Readers(_application(job).settings, SystemClock())) as readers:
            states = [read_state(readers, unit) for unit in range(PARTITIONS)]
    except (KafkaException, FileNotFoundError):
        return {}
    for state in states:
        length += max((one.length for one in state.manifests()), default=0)
        checkpoint = state.checkpoint()
        rows += sum(one.held_left + one.held_right for one in checkpoint.joins.values()) if checkpoint else 0
    return {"state_bytes": length, "state_rows": rows} if length else {"state_rows": rows}


def _pass_through(job: Job) -> list[list[str]]:
    given = [job.kafka.bootstrap_servers, job.data, job.out, str(BATCH), str(job.records), "1"]
    return [[sys.executable, "-m", "bench.kafka", "--pass-through", *given]]


def _spark_jars() -> str:
    return str(Parts(parts_folder(CACHE), print).spark_kafka())


@dataclass(frozen=True)
class _Script:
    """A script in bench/peers, and the arguments it takes beyond those that all peers share.

    ``name`` is that of the script, or, after ``jvm/``, the engine of a peer in Java.
    ``takes_lateness``: it takes the lateness as an argument. ``for_latency`` are its settings for low latency.
    ``widths``: windows of its grid are this many times as wide as the window to each side of a record.
    """

    name: str
    has_window: bool = True
    takes_lateness: bool = True
    for_latency: tuple[str, ...] = ()
    widths: int = 1

    @property
    def is_spark(self) -> bool:
        """Whether it runs in the installed Spark."""
        return self.name.removeprefix("jvm/").startswith("spark")

    def command(self, job: Job, *given: str) -> list[str]:
        """Return the command. Raises `NotHereError` if it has no environment here."""
        start = self._start()
        more: list[str] = []
        if self.takes_lateness:
            more += ["--lateness-ms", str(job.lateness_ms + (SPARK_LATENESS_MS if self.is_spark else 0))]
        more += ["--width-ms", str(self.widths * job.width_ms)] if self.has_window else []
        more += self.for_latency if job.is_for_latency else ()
        base = [*start, job.kafka.bootstrap_servers, job.data, job.out, "--partitions", str(PARTITIONS)]
        return [*base, "--state", str(job.state), *more, *given]

    def _start(self) -> list[str]:
        try:
            if self.name.startswith("jvm/"):
                engine = self.name.removeprefix("jvm/")
                return [sys.executable, *programs.command(engine, parts_folder(CACHE), print)]
            if self.is_spark:
                return [sys.executable, str(PEERS / f"{self.name}.py"), "--jars", _spark_jars()]
            return environments.command(self.name, parts_folder(CACHE), print)
        except (OSError, StackError) as error:
            raise NotHereError(f"no environment for {self.name}: {error}") from error


def _of_script(
    name: str,
    what: str,
    script: _Script,
    *given: str,
    lacks: str,
    topics: int = 1,
    gives_window: bool = False,
    waits_ms: int = 0,
    tried: dict[str, tuple[str, ...]] | None = None,
) -> Contender:
    """Return the contender for a script. ``tried`` are alternatives to its best settings, by name."""

    def contender(name: str, *settings: str) -> Contender:
        def commands(job: Job) -> list[list[str]]:
            return [script.command(job, *settings)]

        return Contender(
            name,
            what,
            commands,
            lacks,
            has_window=script.has_window,
            widths=script.widths,
            gives_window=gives_window,
            topics=topics,
            waits_ms=waits_ms,
        )

    variants = [contender(f"{name}: {one}", *given, *settings) for one, settings in (tried or {}).items()]
    return replace(contender(name, *given), variants=tuple(variants))


def _variants(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: ("--variant", name) for name in names}


_WINDOW: Final = "misses neighbours farther apart than its window; pairs all records within it"

_NEIGHBOURS: Final = "finds only neighbours, not all pairs within an interval"

OURS: Final = (
    Contender("plain process", "joiner run", _joiner, _NEIGHBOURS, held=_held),
    Contender("two processes", "joiner run, twice", lambda job: _joiner(job, processes=2), _NEIGHBOURS, held=_held),
    Contender(
        "Spark stage", "joiner spark, local[2]", lambda job: _joiner(job, command="spark"), _NEIGHBOURS, held=_held
    ),
    Contender(
        "Spark stage, one core",
        "joiner spark, local[1]",
        lambda job: _joiner(job, command="spark", cores=1),
        _NEIGHBOURS,
        held=_held,
    ),
)
PASS_THROUGH: Final = Contender(
    "pass-through",
    "consume, produce, commit in Python, a transaction per unit, a dict per message: not an upper limit",
    _pass_through,
    "joins nothing",
)
_SPARK: Final = _Script("spark_windowed")
SPARK_BEST: Final = _of_script(
    "Spark range join, best",
    "Spark: the fastest of the trials, with a query rewritten for it",
    _SPARK,
    lacks=_WINDOW,
    gives_window=True,
    tried={
        "batches of 100,000": ("--batch", "100000"),
        "batches of 400,000": ("--batch", "400000"),
        "no buckets": ("--bucket-ms", "0"),
    },
)
SPARK_TUNED: Final = _of_script(
    "Spark range join, tuned",
    "Spark as its documentation advises: state format 4, RocksDB, changelogs",
    _SPARK,
    *("--settings", "tuned"),
    lacks=_WINDOW,
    gives_window=True,
    tried={
        "batches of 100,000": ("--batch", "100000"),
        "batches of 400,000": ("--batch", "400000"),
        "4 partitions": ("--set", "spark.sql.shuffle.partitions=4"),
    },
)
SPARK_DEFAULT: Final = replace(
    _of_script(
        "Spark range join, default",
        "Spark's defaults, in batches that end within the time limit",
        _SPARK,
        *("--settings", "default", "--batch", "50000"),
        lacks=_WINDOW,
        gives_window=True,
    ),
    patience=2.5,
)
_BY_HAND: Final = "users write the join themselves"
_ORDERED: Final = f"needs ordered records; {_BY_HAND}"
_QUICK_COMMITS: Final = ("--variant", "commit-30ms")
_FLINK_BY_HAND: Final = _Script("jvm/flink", has_window=False, for_latency=("--variant", "checkpoint-100ms"))
_ON_THE_JVM: Final = (
    _of_script(
        "Kafka Streams window",
        "Kafka Streams: the windowed join of its DSL, exactly once, stores in memory",
        _Script("jvm/streams", for_latency=_QUICK_COMMITS),
        *("--join", "window"),
        lacks=_WINDOW,
        gives_window=True,
        tried=_variants("rocksdb", "commit-100ms", "commit-5s", "one-thread", "poll-4000", "poll-10000", "batch-16k"),
    ),
    _of_script(
        "Kafka Streams by hand",
        "Kafka Streams: a processor that keeps the neighbours of each thing, exactly once, stores in memory",
        _Script("jvm/streams", has_window=False, for_latency=_QUICK_COMMITS),
        lacks=f"{_BY_HAND}; without a lateness, needs ordered records",
        tried=_variants(
            "rocksdb", "no-cache", "commit-100ms", "commit-5s", "one-thread", "poll-4000", "poll-10000", "batch-16k"
        ),
    ),
    _of_script(
        "Flink by hand",
        "Flink in Java: a keyed process function, exactly once, state in memory",
        _FLINK_BY_HAND,
        lacks=f"{_BY_HAND}; without a lateness, needs ordered records",
        tried=_variants("rocksdb", "parallelism-4", "parallelism-1", "checkpoint-10s", "large-fetches"),
    ),
    _of_script(
        "Flink by hand, timers",
        "Flink in Java: the same, each record waits for the watermark",
        _FLINK_BY_HAND,
        *("--order", "timers"),
        lacks=_BY_HAND,
        tried=_variants("rocksdb", "not-aligned", "drift-10s", "parallelism-4", "large-fetches"),
    ),
    _of_script(
        "Spark by hand in Java",
        "Spark: transformWithState in Java, each record waits for the watermark",
        _Script("jvm/spark", has_window=False),
        lacks=_BY_HAND,
        waits_ms=SPARK_LATENESS_MS,
        tried={"batches of 100,000": ("--batch", "100000"), **_variants("4-partitions", "no-changelogs")},
    ),
    _of_script(
        "Spark by hand in Java, ordered",
        "Spark: transformWithState in Java, pairs of a record in its batch",
        _Script("jvm/spark", has_window=False),
        *("--order", "arrival"),
        lacks=_ORDERED,
        tried={
            "batches of 100,000": ("--batch", "100000"),
            "batches of 400,000": ("--batch", "400000"),
            **_variants("4-partitions", "no-changelogs"),
        },
    ),
)
PEERS_OF_OTHERS: Final = (
    SPARK_BEST,
    SPARK_TUNED,
    SPARK_DEFAULT,
    _of_script(
        "Spark tumbling window",
        "Spark: tumbling windows, twice as wide as the range join's window to each side",
        replace(_SPARK, widths=2),
        *("--variant", "tumbling"),
        lacks=f"{_WINDOW}; misses neighbours across a window boundary",
        gives_window=True,
    ),
    _of_script(
        "Spark range join, nearest kept",
        "Spark: the range join, reduced to the nearest record before and after",
        _SPARK,
        *("--variant", "nearest"),
        lacks="misses neighbours farther apart than its window; finds pairs from the left side only",
    ),
    _of_script(
        "Spark as-of by hand",
        "Spark: transformWithState",
        _Script("spark_asof", has_window=False),
        lacks="finds pairs from the left side only",
        waits_ms=SPARK_LATENESS_MS,
    ),
    _of_script(
        "Flink interval join",
        "Flink SQL, exactly once",
        _Script("flink_interval", for_latency=("--variant", "checkpoint-200ms")),
        lacks=_WINDOW,
        gives_window=True,
        tried=_variants("rocksdb", "not-aligned", "parallelism-2"),
    ),
    _of_script(
        "Quix Streams as-of",
        "Quix Streams: two join_asof, one per side",
        _Script("quix_asof", has_window=False, takes_lateness=False),
        lacks="needs ordered records and a topic per side",
        topics=2,
    ),
    _of_script("bytewax window", "bytewax: sliding windows, at least once", _Script("bytewax_window"), lacks=_WINDOW),
    _of_script(
        "bytewax by hand",
        "bytewax: a custom stateful step, at least once",
        _Script("bytewax_window", has_window=False, takes_lateness=False),
        *("--variant", "by-hand"),
        lacks="needs ordered records; users write the join themselves",
    ),
    _of_script(
        "Pathway interval join",
        "Pathway: interval_join, without state that survives the process",
        _Script("pathway_join", takes_lateness=False),
        lacks=f"{_WINDOW}; exactly-once delivery and persistent state need a licence",
        gives_window=True,
    ),
    *_ON_THE_JVM,
)
CONTENDERS: Final = {one.name: one for one in (*OURS, PASS_THROUGH, *PEERS_OF_OTHERS)}
CORE: Final = ("plain process", "Spark stage", SPARK_BEST.name)
"""The contenders that run on every workload."""
