"""A long run at moderate load, with a kill every minute. Nothing may be lost or duplicated, and no resource may leak.

``python -m tests.chaos.soak --minutes 65 --report docs/evidence/soak``. Joiner three is never killed, and the
connectors are killed only in the first half, so that a leak would show. The memory, open files and threads of every
process and the size of the state topic on disk are sampled.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from simulator.generate import Plan, write
from tests.chaos.pipeline import ChaosPipeline, chaos_stack
from tests.chaos.play import Play
from tests.chaos.report import row_of, versions_of
from tests.chaos.schedule import Act

_SAMPLE_S: Final = 10.0
_ALWAYS: Final = ("one", "two", "influxdb", "one", "simulator", "two", "kafka")
_FIRST_HALF: Final = ("one", "connector", "two", "db_connector", "influxdb", "connector", "simulator", "kafka")
_SHOWN_EVERY_S: Final = 300.0
_GROWTH_MAX: Final = 12
"""How many threads or open files a process may gain. Its units change when other processes are killed."""


class Sample(NamedTuple):
    """The resources of a process, ``s`` seconds after the start of the run."""

    s: float
    name: str
    pid: int
    memory_kb: int
    files: int
    threads: int


class Sampler:
    """Samples all processes of a pipeline in a separate thread."""

    def __init__(self, pipeline: ChaosPipeline) -> None:
        self.samples: list[Sample] = []
        self.state_bytes: list[tuple[float, int]] = []
        self._pipeline = pipeline
        self._stop = threading.Event()
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            moment_s = round(time.monotonic() - self._began_s, 1)
            for name, pid in list(self._processes()):
                try:
                    self.samples.append(Sample(moment_s, name, pid, *_resources(pid)))
                except (OSError, ValueError):
                    continue  # the process has just ended
            self.state_bytes.append((moment_s, self._state_bytes()))

    def _processes(self) -> Iterator[tuple[str, int]]:
        found: list[tuple[str, int | None]] = [(one.name, one.pid) for one in self._pipeline.services.values()]
        found += [(server.name, server.pid) for server in self._pipeline.servers.stack.servers]
        return ((name, pid) for name, pid in found if pid is not None)

    def _state_bytes(self) -> int:
        folders = self._pipeline.servers.stack.kafka.data.glob(f"{self._pipeline.name}.state-*")
        sizes = 0
        for file in (file for folder in folders for file in folder.glob("*.log")):
            try:
                sizes += file.stat().st_size
            except OSError:
                continue  # the log cleaner has just removed it
        return sizes


def _resources(pid: int) -> tuple[int, int, int]:
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    files = sum(1 for _ in (folder / "fd").iterdir())
    return int(status["VmRSS"].split()[0]), files, int(status["Threads"])


def kills(minutes: int, seed: int) -> list[Act]:
    """Return the acts of the run: a kill every minute, and the start of joiner three."""
    draw = random.Random(seed)
    acts = [Act(5.0, "join", "three")]
    for minute in range(1, minutes):
        targets = _FIRST_HALF if minute < minutes / 2 else _ALWAYS
        acts.append(Act(60.0 * minute, "kill", targets[minute % len(targets)], round(draw.uniform(0, 5), 2)))
    return acts


def growth(samples: list[Sample], end_s: float) -> list[str]:
    """Return a line per leak in a process that is not killed: joiner three, or a connector in the second half.

    Memory is not checked, because it stabilises late. A leaked client would show in threads and open files.
    """
    found = []
    for name, begin_s in (("three", end_s / 10), ("connector", end_s / 2), ("db_connector", end_s / 2)):
        of_it = [one for one in samples if one.name == name and one.s >= begin_s]
        first, last = of_it[: len(of_it) // 5], of_it[-len(of_it) // 5 :]
        for what in ("threads", "files"):
            before, after = (statistics.median_high(getattr(one, what) for one in some) for some in (first, last))
            if after > before + _GROWTH_MAX:
                found.append(f"{name} had {before} {what}, and {after} at the end")
    return found


def main() -> int:
    """Run, and write the report. Return 0 if nothing was lost or duplicated and no process exited by itself."""
    options = _options()
    # Kept, with the logs, if the run fails.
    folder = Path(tempfile.mkdtemp(prefix="lsb-soak-"))
    sys.stdout.write(f"in {folder}\n")
    with chaos_stack() as servers:
        events = folder / "events.json"
        count = options.minutes * 60 * options.rate
        plan = Plan(events=count, seed=options.seed, machines=7, disorder=0.02, repeats=0.005, equal=0.005)
        write(plan, events)
        pipeline = ChaosPipeline(servers, folder, events, options.rate)
        play = Play(pipeline, kills(options.minutes, options.seed))
        sampler = Sampler(pipeline)
        began_s = time.monotonic()
        try:
            played = play.run()
        finally:
            sampler.close()
            play.close()
            pipeline.close()
        row = row_of(options.seed, played, time.monotonic() - began_s)
        versions = versions_of()
    failures = [*played.failures, *growth(sampler.samples, options.minutes * 60)]
    is_good = played.report["is_right"] and not failures
    options.report.with_suffix(".md").write_text(_markdown(versions, row, sampler, options.rate))
    sys.stdout.write("\n".join([str(row), *failures, "PASSED" if is_good else "FAILED", ""]))
    if is_good:
        shutil.rmtree(folder)
    return 0 if is_good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=65)
    parser.add_argument("--rate", type=int, default=60, help="events a second (default 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, default=Path("soak"), help="path of .md")
    return parser.parse_args()


def _markdown(versions: dict[str, str], row: dict[str, Any], sampler: Sampler, rate: int) -> str:
    lines = ["# A long run with a kill every minute", "", f"- load: {rate} events/s"]
    lines += [f"- {name}: {value}" for name, value in versions.items()]
    lines += [f"- {name}: {value}" for name, value in row.items()]
    lines += ["", "Memory (MB), open files and threads of each process; the median of every five minutes.", ""]
    names = list(dict.fromkeys(sample.name for sample in sampler.samples))
    lines += ["| minute | " + " | ".join([*names, "state topic, MB"]) + " |", "|" + "---|" * (len(names) + 2)]
    end_s = max(sample.s for sample in sampler.samples)
    low_s = 0.0
    while low_s < end_s:
        high_s = low_s + _SHOWN_EVERY_S
        cells = [_cell([one for one in sampler.samples if one.name == n and low_s <= one.s < high_s]) for n in names]
        sizes = [size for moment_s, size in sampler.state_bytes if low_s <= moment_s < high_s]
        state = f"{max(sizes) / 1e6:.1f}" if sizes else "-"
        lines.append("| " + " | ".join([f"{low_s / 60:.0f}-{high_s / 60:.0f}", *cells, state]) + " |")
        low_s = high_s
    return "\n".join([*lines, ""])


def _cell(samples: list[Sample]) -> str:
    if not samples:
        return "-"
    memory_mb = statistics.median(sample.memory_kb for sample in samples) / 1024
    files = statistics.median_high(sample.files for sample in samples)
    threads = statistics.median_high(sample.threads for sample in samples)
    return f"{memory_mb:.0f} / {files} / {threads}"


if __name__ == "__main__":
    sys.exit(main())
