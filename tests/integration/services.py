"""Helpers for tests of services on real servers: start, wait, stop, read a topic.

A service is a child process with its own log. `broker.stack.child.Child` is not used, because it runs one process at a
time and keeps no exit status. Here several services run at once, and tests check their exit status.

Every wait is for a condition, with a deadline. Nothing here depends on a particular service.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from broker.stack import child
from tests.integration.forked import start_forked

ROOT: Final = Path(__file__).parents[2]

DEADLINE_S: Final = 60.0
"""How long a test waits for a condition: far longer than necessary, even on a busy machine."""

STOP_S: Final = 5.0
"""How long a service may take to stop after a signal."""

MOMENT_S: Final = 20.0
SHORT_MOMENT_S: Final = 3.0
"""For tests of how long a stop takes."""

_REST_SHARE: Final = 2.0
_REST_S_MAX: Final = 0.25
"""How long `wait_until` rests after a check: this many times as long as the check has taken, up to the maximum."""


class Stored(NamedTuple):
    """A record of a topic. ``at_ms``: when Kafka appended it."""

    partition: int
    key: bytes | None
    value: bytes
    at_ms: int


def wait_until(
    condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S, poll_s: float = child.POLL_S
) -> None:
    """Wait for a condition. Fail with ``what`` after the deadline. ``poll_s``: the least time between two checks."""
    begin_s = time.monotonic()
    end_s = begin_s + deadline_s
    while not condition():
        now_s = time.monotonic()
        assert now_s < end_s, f"{what}: not within {deadline_s} s"
        # Checks that read from servers would otherwise take the CPU time from what is waited for.
        time.sleep(max(poll_s, min(_REST_SHARE * (now_s - begin_s), _REST_S_MAX)))
        begin_s = time.monotonic()


def start_service(module: str, *arguments: str, environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start ``python -m module`` with additional environment variables. Its output is appended to ``log``."""
    with log.open("ab") as out:
        return start_forked(module, arguments, {**os.environ, **environment}, out, out)


def run_service(module: str, *arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module`` with additional environment variables until it ends. Return its status and output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = start_forked(module, arguments, {**os.environ, **environment}, out, errors)
        try:
            status = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            kill(process)
            raise
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(process.args, status, *texts)


def logged(process: subprocess.Popen[bytes], log: Path, pattern: str) -> re.Match[str]:
    """Wait until a service has logged this. Fails if the service ends before."""
    found: re.Match[str] | None = None

    def is_logged() -> bool:
        nonlocal found
        text = log.read_text(errors="replace")
        found = re.search(pattern, text)
        assert found or process.poll() is None, f"the service has ended:\n{text[-3000:]}"
        return found is not None

    wait_until(is_logged, f"{pattern!r} is logged")
    assert found is not None
    return found


def stop(
    process: subprocess.Popen[bytes],
    number: signal.Signals = signal.SIGTERM,
    deadline_s: float = STOP_S,
    moment_s: float = MOMENT_S,
) -> int:
    """Stop a service, once it handles signals. Return its exit status.

    Raises TimeoutExpired ``moment_s`` after the deadline, which is how much longer a busy machine may take.
    """
    # A signal that arrives while Python is still importing would end the process at once.
    wait_until(lambda: handles(process, number), "the service handles signals")
    process.send_signal(number)
    return process.wait(deadline_s + moment_s)


def handles(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """Return whether a process has installed a handler for a signal, or has ended. Always true without ``/proc``."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except FileNotFoundError:
        return True
    caught = re.search(r"SigCgt:\s*(\w+)", status)
    return process.poll() is not None or caught is None or bool(int(caught[1], 16) >> (number - 1) & 1)


def is_stopped(process: subprocess.Popen[Any]) -> bool:
    """Return whether a process is frozen. It goes on for a moment after SIGSTOP if its main thread is not scheduled."""
    assert process.poll() is None
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def kill(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to the process and wait until it is gone. Does nothing if it has already ended."""
    process.kill()
    process.wait(DEADLINE_S)


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to a service and all its descendants, as close together as possible."""
    # The id of a process that has ended may by now be that of another one.
    if process.poll() is None:
        signal_all(with_children(process.pid), signal.SIGKILL)
    process.wait(DEADLINE_S)


def signal_all(numbers: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to the processes that are still running."""
    for one in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


def with_children(number: int) -> list[int]:
    """Return the ids of a process and its running descendants."""
    found = [number]
    for one in found:
        for tasks in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it has just ended
                found += map(int, tasks.read_text().split())
    return found


def ends_of(consumer: Consumer, topic: str, partitions: int) -> list[int]:
    """Return the current end offsets of a topic, by partition."""
    return [_end_of(consumer, TopicPartition(topic, number)) for number in range(partitions)]


def read_topic(bootstrap: str, topic: str, partitions: int) -> list[Stored]:
    """Return all committed records of a topic."""
    found: list[Stored] = []
    with closing(topic_reader(bootstrap, f"{topic}.reader")) as consumer:
        ends = ends_of(consumer, topic, partitions)
        unread = {number for number, end in enumerate(ends) if end}
        consumer.assign([TopicPartition(topic, number, 0) for number in unread])
        end_s = time.monotonic() + DEADLINE_S
        while unread:
            assert time.monotonic() < end_s, f"{topic}: partitions {unread} were not read within {DEADLINE_S} s"
            for message in consumer.consume(10_000, 0.2):
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    found.append(Stored(partition, message.key(), message.value() or b"", int(message.timestamp()[1])))
                    continue
                assert error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001 - its only name
                if (message.offset() or 0) >= ends[partition]:
                    unread.discard(partition)
    return found


def topic_reader(bootstrap: str, group: str, isolation: str = "read_committed") -> Consumer:
    """Return a consumer that commits nothing and reports the ends of partitions."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )


def wait_until_decided(bootstrap: str, topic: str, partitions: int) -> None:
    """Wait until no transaction is open in a topic.

    Kafka writes the markers of a transaction to its partitions only after the call that ends it has returned.
    """
    with (
        closing(topic_reader(bootstrap, f"{topic}.stable")) as stable,
        closing(topic_reader(bootstrap, f"{topic}.all", "read_uncommitted")) as everything,
    ):
        wait_until(
            lambda: ends_of(stable, topic, partitions) == ends_of(everything, topic, partitions),
            f"no transaction is open in {topic}",
        )


def _end_of(consumer: Consumer, partition: TopicPartition) -> int:
    """Return the end offset of a partition. Retry, because a new topic or a starting broker may have no leader yet."""
    end_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=10)[1])
        except KafkaException:
            if time.monotonic() > end_s:
                raise
            time.sleep(child.POLL_S)
