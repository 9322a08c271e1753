"""The contenders: their commands, windows and limitations.

A peer is a script in bench/peers or bench/peers/jvm, run as ``PYTHON NAME.py BOOTSTRAP DATA OUT --partitions N --state
FOLDER [--width-ms W] [--variant V] …``. If its environment cannot be created, the report says why.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

from bench.contest.job import AT_LEAST_ONCE, EXACTLY_ONCE, ROOT, Contender, Job, NotHereError
from bench.contest.states import State, of_joiner
from bench.harness.other_layout import SCHEMA, stream_settings
from bench.harness.pipeline import Application
from bench.kafka import BATCH
from bench.peers import environments
from bench.peers.ceiling.programs import build
from bench.peers.jvm import programs
from broker.stack.errors import StackError
from broker.stack.parts import Parts, parts_folder

PEERS: Final = ROOT / "bench" / "peers"
CACHE: Final = Path(".lsb")


SPARK_LATENESS_MS: Final = 10_000
"""Extra lateness for Spark, which reads its partitions at different speeds but has one watermark for all of them."""


def application_of(job: Job, cores: int = 2) -> Application:
    """Return the joiner's application for a job."""
    # The topic of the project's own form cannot have other streams, so it is another one if there are any.
    data = f"{job.name}.data" if job.registry else job.data
    application = Application(job.kafka, job.folder, job.name, job.partitions, data=data, quantities=job.quantities)
    of_operator = f'lateness = "{job.lateness_ms}ms"\nwatermark_scope = "{job.watermark_scope}"\n'
    of_streams = stream_settings(job.data, "avro", job.registry) if job.registry else ""
    application.add_settings(f'{of_operator}\n[spark]\nmaster = "local[{job.cores or cores}]"\n\n{of_streams}')
    return application


def _joiner(job: Job, *, command: str = "run", processes: int = 1, cores: int = 2) -> list[list[str]]:
    application = application_of(job, cores)
    return [application.command(instance=str(number), command=command) for number in range(processes)]


def _states(job: Job) -> list[State]:
    try:
        return of_joiner(application_of(job).settings, job.data)
    except FileNotFoundError:
        return []  # the folder is gone


def _pass_through(job: Job) -> list[list[str]]:
    given = [job.kafka.bootstrap_servers, job.data, job.out, str(BATCH), str(job.records), "1"]
    return [[sys.executable, "-m", "bench.kafka", "--pass-through", *given]]


def _spark_jars() -> str:
    return str(Parts(parts_folder(CACHE), print).spark_kafka())


@dataclass(frozen=True)
class _Script:
    """A script in bench/peers, and the arguments it takes in addition to those common to all peers.

    ``name`` is the name of the script or, for a peer in Java, ``jvm/`` followed by the name of the engine.
    ``takes_lateness`` says whether the script accepts ``--lateness-ms``. ``for_latency`` maps the name of each
    low-latency configuration to its arguments. ``widths`` applies to scripts whose windows form a fixed grid: each
    window is ``widths`` times as long as the distance that the other scripts look to either side of a record.
    ``guarantee`` is the script's delivery guarantee.
    """

    name: str
    has_window: bool = True
    takes_lateness: bool = True
    for_latency: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    widths: int = 1
    guarantee: str = AT_LEAST_ONCE

    @property
    def is_spark(self) -> bool:
        """Whether the script runs in the installed Spark."""
        return self.name.removeprefix("jvm/").startswith("spark")

    def command(self, job: Job, *given: str) -> list[str]:
        """Return the command that runs the script for a job.

        Raises `NotHereError` if the script's environment is not available on this machine.
        """
        start = self._start(job)
        more: list[str] = []
        if self.takes_lateness:
            more += ["--lateness-ms", str(job.lateness_ms + (SPARK_LATENESS_MS if self.is_spark else 0))]
        more += ["--width-ms", str(self.widths * job.width_ms)] if self.has_window else []
        if self.is_spark and job.cores:
            more += ["--master", f"local[{job.cores}]", "--set", f"spark.sql.shuffle.partitions={job.cores}"]
        more += ["--quantities", ",".join(job.quantities)] if job.quantities else []
        base = [*start, job.kafka.bootstrap_servers, job.data, job.out, "--partitions", str(job.partitions)]
        return [*base, "--state", str(job.state), *more, *given]

    def _start(self, job: Job) -> list[str]:
        try:
            if self.name.startswith("jvm/"):
                engine = self.name.removeprefix("jvm/")
                given = ["--schema", SCHEMA] if job.registry else []
                return [sys.executable, *programs.command(engine, parts_folder(CACHE), print), *given]
            if self.is_spark:
                return [sys.executable, str(PEERS / f"{self.name}.py"), "--jars", _spark_jars()]
            return environments.command(self.name, parts_folder(CACHE), print, registry=job.registry)
        except (OSError, StackError) as error:
            raise NotHereError(f"no environment for {self.name}: {error}") from error


def _of_script(
    name: str,
    what: str,
    script: _Script,
    *given: str,
    lacks: str,
    topics: int = 1,
    waits_ms: int = 0,
    tried: dict[str, tuple[str, ...]] | None = None,
) -> Contender:
    """Return a contender that runs a script. ``tried`` maps names of alternative settings to their arguments."""

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
            guarantee=script.guarantee,
            topics=topics,
            waits_ms=waits_ms,
            in_batches=script.is_spark,
        )

    variants = [contender(f"{name}: {one}", *given, *settings) for one, settings in (tried or {}).items()]
    late = [contender(f"{name}, {one}", *given, *settings) for one, settings in script.for_latency.items()]
    return replace(contender(name, *given), variants=tuple(variants), for_latency=tuple(late))


def _variants(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: ("--variant", name) for name in names}


_WINDOW: Final = "misses neighbours that are farther apart than its window; pairs all records within the window"

_NEIGHBOURS: Final = "finds only neighbours, not all pairs within an interval"

OURS: Final = (
    Contender("plain process", "joiner run", _joiner, _NEIGHBOURS, states=_states),
    Contender("two processes", "joiner run, twice", lambda job: _joiner(job, processes=2), _NEIGHBOURS, states=_states),
    Contender(
        "Spark stage",
        "joiner spark, local[2]",
        lambda job: _joiner(job, command="spark"),
        _NEIGHBOURS,
        states=_states,
    ),
    Contender(
        "Spark stage, one core",
        "joiner spark, local[1]",
        lambda job: _joiner(job, command="spark", cores=1),
        _NEIGHBOURS,
        states=_states,
    ),
)
PASS_THROUGH: Final = Contender(
    "pass-through",
    "consumes, produces and commits in Python, with one transaction per unit and one dict per message; a reference",
    _pass_through,
    "joins nothing",
)


@cache
def _programs() -> tuple[dict[str, list[str]], list[str]]:
    folder = (CACHE / "ceiling").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return build(folder)


def _ceiling(name: str, what: str) -> Contender:
    def commands(job: Job) -> list[list[str]]:
        programs, missing = _programs()
        if name not in programs:
            raise NotHereError("; ".join(missing))
        given = [job.kafka.bootstrap_servers, job.data, job.out, str(job.partitions), str(BATCH), str(job.records)]
        return [[*programs[name], *given]]

    return Contender(name, what, commands, "joins nothing")


CEILINGS: Final = (
    _ceiling("pass-through in C", "the joiner's transactions, run with its client's C library; a reference"),
    _ceiling("pass-through in Java", "the joiner's transactions, run with Kafka's own Java client; a reference"),
)
_SPARK: Final = _Script("spark_windowed")
SPARK_BEST: Final = _of_script(
    "Spark range join, best",
    "Spark: the fastest settings in single trials, with a query rewritten for speed",
    replace(
        _SPARK,
        for_latency={
            f"{cores} join partition{'s' * (cores > 1)}": ("--set", f"spark.sql.shuffle.partitions={cores}")
            for cores in (1, 2)
        },
    ),
    lacks=_WINDOW,
    tried={
        "batches of 100,000": ("--batch", "100000"),
        "batches of 400,000": ("--batch", "400000"),
        "no buckets": ("--bucket-ms", "0"),
        "Kafka's own batches in the sink": ("--sink", "default"),
    },
)
SPARK_TUNED: Final = _of_script(
    "Spark range join, tuned",
    "Spark: RocksDB with changelogs, as its documentation advises for large states, and state format 4, an internal "
    "setting",
    _SPARK,
    *("--settings", "tuned"),
    lacks=_WINDOW,
    tried={
        "batches of 100,000": ("--batch", "100000"),
        "batches of 400,000": ("--batch", "400000"),
        "4 partitions": ("--set", "spark.sql.shuffle.partitions=4"),
        "Kafka's own batches in the sink": ("--sink", "default"),
    },
)
SPARK_DEFAULT: Final = replace(
    _of_script(
        "Spark range join, default",
        "Spark: the default settings, with batches small enough to finish within the time limit",
        _SPARK,
        *("--settings", "default", "--batch", "50000"),
        lacks=_WINDOW,
    ),
    patience=2.5,
)
_BY_HAND: Final = "users write the join themselves"
_ORDERED: Final = f"needs ordered records; {_BY_HAND}"
_STREAMS: Final = _Script(
    "jvm/streams",
    for_latency={f"commits every {ms} ms": ("--variant", f"commit-{ms}ms") for ms in (10, 30, 100)},
    guarantee=EXACTLY_ONCE,
)
_FLINK_BY_HAND: Final = _Script(
    "jvm/flink",
    has_window=False,
    for_latency={f"checkpoint {ms} ms": ("--variant", f"checkpoint-{ms}ms") for ms in (100, 200)},
    guarantee=EXACTLY_ONCE,
)
_SINKS: Final = ("sink-256k", "sink-default")
_STREAMS_TRIALS: Final = (
    *("commit-100ms", "commit-5s", "one-thread", "poll-4000", "poll-10000", "small-fetches"),
    *_SINKS,
)
_FLINK_TRIALS: Final = ("checkpoint-5s", "checkpoint-10s", "pooled-transactions", *_SINKS)
_SPARK_TRIALS: Final = {
    **{f"batches of {size:,}": ("--batch", str(size)) for size in (100_000, 400_000, 800_000)},
    **_variants("4-partitions", "no-changelogs", *_SINKS),
}
_ON_THE_JVM: Final = (
    _of_script(
        "Kafka Streams window",
        "Kafka Streams: the windowed join of its DSL, exactly once, with in-memory stores",
        _STREAMS,
        *("--join", "window"),
        lacks=_WINDOW,
        tried=_variants("rocksdb", *_STREAMS_TRIALS),
    ),
    _of_script(
        "Kafka Streams by hand",
        "Kafka Streams: a processor that keeps the neighbours of each thing, exactly once, with in-memory stores",
        replace(_STREAMS, has_window=False),
        lacks=f"{_BY_HAND}; needs ordered records unless a lateness is set",
        tried=_variants("rocksdb", "no-cache", *_STREAMS_TRIALS),
    ),
    _of_script(
        "Flink by hand",
        "Flink in Java: a keyed process function, exactly once, with state in memory",
        _FLINK_BY_HAND,
        lacks=f"{_BY_HAND}; needs ordered records unless a lateness is set",
        tried=_variants("rocksdb", "parallelism-4", "parallelism-1", "small-fetches", "huge-fetches", *_FLINK_TRIALS),
    ),
    _of_script(
        "Flink by hand, timers",
        "Flink in Java: the same function, except that each record waits for the watermark",
        _FLINK_BY_HAND,
        *("--order", "timers"),
        lacks=_BY_HAND,
        # A record is joined only once the watermark has passed its time.
        waits_ms=1_000,
        tried=_variants("rocksdb", "not-aligned", "drift-10s", "parallelism-4", "large-fetches", *_FLINK_TRIALS),
    ),
    _of_script(
        "Spark by hand in Java",
        "Spark: transformWithState in Java; each record waits for the watermark",
        _Script("jvm/spark", has_window=False),
        lacks=_BY_HAND,
        waits_ms=SPARK_LATENESS_MS,
        tried=_SPARK_TRIALS,
    ),
    _of_script(
        "Spark by hand in Java, ordered",
        "Spark: transformWithState in Java; each record is joined in the batch in which it arrives",
        _Script("jvm/spark", has_window=False),
        *("--order", "arrival"),
        lacks=_ORDERED,
        tried=_SPARK_TRIALS,
    ),
)
PEERS_OF_OTHERS: Final = (
    SPARK_BEST,
    _of_script(
        "Spark range join, two topics",
        "Spark: the best settings, with one topic per side instead of one topic for both sides",
        _SPARK,
        lacks=_WINDOW,
        topics=2,
    ),
    SPARK_TUNED,
    SPARK_DEFAULT,
    _of_script(
        "Spark tumbling window",
        "Spark: tumbling windows, each as long as the whole window of the range join around a record",
        replace(_SPARK, widths=2),
        *("--variant", "tumbling"),
        lacks=f"{_WINDOW}; misses neighbours across a window boundary",
    ),
    _of_script(
        "Spark range join, nearest kept",
        "Spark: the range join, keeping only the nearest record before and after each left record",
        _SPARK,
        *("--variant", "nearest"),
        lacks="misses neighbours that are farther apart than its window; finds neighbours of left records only",
        waits_ms=SPARK_LATENESS_MS,
    ),
    _of_script(
        "Spark as-of by hand",
        "Spark: transformWithState",
        _Script("spark_asof", has_window=False),
        lacks="finds neighbours of left records only; the last records are held until later ones arrive",
        waits_ms=SPARK_LATENESS_MS,
    ),
    _of_script(
        "Flink interval join",
        "Flink SQL, exactly once",
        _Script(
            "flink_interval",
            for_latency={f"checkpoint {ms} ms": ("--variant", f"checkpoint-{ms}ms") for ms in (20, 50, 100, 200)},
            guarantee=EXACTLY_ONCE,
        ),
        lacks=_WINDOW,
        tried=_variants("rocksdb", "not-aligned", "parallelism-2", "sink-128k", "sink-default"),
    ),
    _of_script(
        "Quix Streams as-of",
        "Quix Streams: two join_asof, one per side",
        _Script(
            "quix_asof",
            has_window=False,
            takes_lateness=False,
            for_latency={f"commits every {ms} ms": ("--variant", f"commit-{ms}ms") for ms in (50, 200)},
            guarantee=EXACTLY_ONCE,
        ),
        lacks=(
            "finds only each record's previous neighbour, and so all pairs only if the sides alternate; needs ordered "
            "records and a topic per side"
        ),
        topics=2,
        tried={"linger 20 ms": ("--variant", "linger-20ms")},
    ),
    _of_script(
        "bytewax window",
        "bytewax: sliding windows, at least once",
        _Script("bytewax_window"),
        lacks=_WINDOW,
        # A window stays open until a later record of the same thing arrives.
        waits_ms=1_000,
    ),
    _of_script(
        "bytewax by hand",
        "bytewax: a custom stateful step, at least once",
        _Script("bytewax_window", has_window=False, takes_lateness=False),
        *("--variant", "by-hand"),
        lacks=_ORDERED,
    ),
    _of_script(
        "Pathway interval join",
        "Pathway: interval_join, with state that is lost when the process ends",
        _Script("pathway_join", takes_lateness=False),
        lacks=f"{_WINDOW}; exactly-once delivery and persistent state need a licence",
    ),
    *_ON_THE_JVM,
)
CONTENDERS: Final = {one.name: one for one in (*OURS, PASS_THROUGH, *CEILINGS, *PEERS_OF_OTHERS)}
CORE: Final = ("plain process", "Spark stage", SPARK_BEST.name)
"""The contenders that run on every workload."""
AVRO_CONTENDERS: Final = (
    *("plain process", "Flink interval join", "Flink by hand"),
    *("Kafka Streams window", "Kafka Streams by hand"),
)
"""The contenders that read Avro."""
ROW_CONTENDERS: Final = (
    *("plain process", "Flink by hand", "Flink by hand, timers"),
    *("Spark by hand in Java", "Spark by hand in Java, ordered"),
)
"""The contenders that produce aligned rows."""
HEADLINE: Final = (
    *("plain process", "Spark stage", PASS_THROUGH.name, *(one.name for one in CEILINGS)),
    *(SPARK_BEST.name, SPARK_TUNED.name, "Flink interval join", "Flink by hand", "Kafka Streams by hand"),
)
"""The contenders named in the headlines of the benchmark page. They are run more often than the others."""
