"""Runs the code blocks of the tutorial in order, in one shell: each must produce the output that the page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from broker.stack.child import POLL_S
from tests.integration.services import DEADLINE_S, ROOT, signal_all, with_children
from tests.unit.project.documents import DOCS, Block, fenced

if TYPE_CHECKING:
    # pytest loads a conftest itself; importing it at run time would create a second copy.
    from tests.integration.conftest import MqttAddress

PAGE: Final = DOCS / "tutorial.md"
QUESTIONS: Final = ("grep", "joiner status", "python -m joiner.tester")
"""Commands that change nothing. As the page suggests, they are repeated until their output matches the page."""
ENDED: Final = "ended with status"


@contextmanager
def shell(folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run bash with job control, as in an interactive shell. All processes that it started are killed at the end."""
    with subprocess.Popen(
        ["bash", "-m"],  # noqa: S607 - the reader's shell
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            signal_all(with_children(process.pid), signal.SIGKILL)


def run(process: subprocess.Popen[str], commands: str) -> tuple[str, int]:
    """Run commands. Return their output, and the status of the last one."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{commands}\nprintf '\\n%s %d\\n' '{ENDED}' $?\n")
    process.stdin.flush()
    output = ""
    for line in process.stdout:
        if line.startswith(ENDED):
            return output, int(line.removeprefix(ENDED))
        output += line
    pytest.fail(f"the shell has ended:\n{output}")


def answer_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern for the output: the lines of the page in order, where an ellipsis matches any text."""
    parts = [re.escape(line.strip()).replace("…", ".*") for line in text.splitlines() if line.strip()]
    return re.compile(r".*\n(?s:.*?)".join(re.sub(r"(?:\\ )+", r"\\s+", part) for part in parts))


def shows(process: subprocess.Popen[str], block: Block, answer: Block) -> None:
    """Run a block and check that it succeeds. If the page shows its output, the block must produce that output."""
    expected = answer_pattern(answer.text if answer.info == "text" else "")
    end_s = time.monotonic() + DEADLINE_S
    output, status = run(process, block.text)
    while not (status == 0 and expected.search(output)) and block.text.startswith(QUESTIONS):
        assert time.monotonic() < end_s, f"{block.text}gave\n{output}\nand the page shows\n{answer.text}"
        time.sleep(POLL_S)
        output, status = run(process, block.text)
    assert status == 0, f"{block.text}ended with status {status}:\n{output}"
    assert expected.search(output), f"{block.text}gave\n{output}\nand the page shows\n{answer.text}"


def test_the_tutorial_s_own_blocks_do_what_the_page_shows(kafka: str, mqtt: MqttAddress, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
        # The variables that the code block about the servers sets.
        "LSB_KAFKA__BOOTSTRAP_SERVERS": kafka,
        "LSB_MQTT__HOST": mqtt.host,
        "LSB_MQTT__PORT": str(mqtt.port),
        "BROKER_HOST": mqtt.host,
        "BROKER_PORT": str(mqtt.port),
    }
    with shell(tmp_path, environment) as process:
        for block, following in pairwise([*fenced(PAGE), Block("", "")]):
            kind, _, name = block.info.partition(" ")
            if kind == "sh" and name != "servers":
                shows(process, block, following)
            elif name.endswith((".py", ".toml")):
                (tmp_path / name).write_text(block.text)
