"""Settings for all tests: logs, signals, reproducible Hypothesis profiles, long tests, and the order of files.

It also has the local stack that the tests on real servers share, in a temporary folder and on free ports.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from broker.stack import LocalStack, ephemeral_stack
from broker.stack.servers import Kafka
from tests.scheduling import FileScheduling, yield_to_servers

# Services that the tests start log to files, where plain text is easier to read and search than JSON.
os.environ.setdefault("LSB_LOG", "text")

# A shell without job control starts background commands with SIGINT ignored, and all processes that the tests start
# would inherit that. Then Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# For servers that run for minutes, the second compiler costs half of their CPU time and gains nothing.
Kafka.java_options = (*Kafka.java_options, "-XX:TieredStopAtLevel=1")

# There is no deadline per example, because any example can be slow on a busy machine.
settings.register_profile("local", deadline=None, print_blob=True)
# Every run uses the same examples, so that its result depends on the code and not on chance.
settings.register_profile(
    "ci", parent=settings.get_profile("local"), derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# A failure is reported without a search for the smallest failing example.
settings.register_profile("no-shrinking", parent=settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("LSB_HYPOTHESIS", "ci" if os.environ.get("CI") else "local"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip long tests unless they are wanted. Files with a slow test come first.

    Test processes side by side then end at about the same time.
    """
    yield_to_servers(config)
    if not os.environ.get("LSB_CHAOS_FULL"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: make test-chaos, or LSB_CHAOS_FULL=1"))
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("chaos")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that look for a planted defect longer than they have to. They passed, but took minutes."""
    passed = terminalreporter.stats.get("passed", [])
    stale = [text for report in passed for name, text in report.user_properties if name == "stale finder"]
    if stale:
        terminalreporter.section("stale finders: python -m tests.simulation --finders --jobs 2")
        terminalreporter.write_line("\n".join(sorted(stale)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `tests.scheduling`."""
    text = "let one of the processes run only tests without servers, beside the others"
    parser.addoption("--fill-waits", action="store_true", help=text)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    """Choose how files are distributed to test processes (``--dist loadfile``)."""
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def stack() -> Iterator[LocalStack]:
    """The stack, for tests that stop, kill or pause servers. They must restart the servers that they stop."""
    with ephemeral_stack(say=print) as started:
        yield started


@pytest.fixture(scope="session")
def kafka(stack: LocalStack) -> str:
    """The bootstrap servers of a running Kafka broker. It is shared: use unique topic names."""
    stack.up([stack.kafka])
    return stack.kafka.address
