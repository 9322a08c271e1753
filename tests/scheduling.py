"""Decides which test process runs which files of tests, and when (pytest-xdist, ``--dist loadfile``)."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

_NICENESS: Final = 5
"""The lower priority of the process that fills waits. Tests on servers have deadlines, and the others have none."""

_ON_SERVERS: Final = ("tests/chaos/", "tests/integration/", "tests/spark/")


def filler(config: pytest.Config, processes: int) -> str | None:
    """Return the name of the test process that runs no tests on servers, with ``--fill-waits``."""
    # The last one, because xdist ends the last ones if there are more processes than files.
    return f"gw{processes - 1}" if processes > 1 and config.getoption("fill_waits", default=False) else None


def yield_to_servers(config: pytest.Config) -> None:
    """Lower the priority of this process if it is the one that fills waits."""
    name = filler(config, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    if name is not None and os.environ.get("PYTEST_XDIST_WORKER") == name:
        os.nice(_NICENESS)


class FileScheduling(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Gives each file of tests to a single test process, and all files that share a Spark session to the same one.

    Processes with tests on servers wait for half of their time. With ``--fill-waits``, one process runs only the other
    tests meanwhile. Once there are no more tests on servers, all processes run these.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "tests/spark/" if nodeid.startswith("tests/spark/") else str(super()._split_scope(nodeid))

    def _reschedule(self, node: Any) -> None:
        """Give a process more work, if it has almost none, or end it.

        It must know the next test before it runs one. More work in advance would let others wait for it in the end.
        """
        if node.shutting_down:
            return
        if not self._files_for(node):
            node.shutdown()
        elif self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)

    def _assign_work_unit(self, node: Any) -> None:
        for file in self._files_for(node)[:1]:
            self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    def _files_for(self, node: Any) -> list[str]:
        """Return the files that are left for a process, in the order in which it should run them."""
        files, name = list(self.workqueue), filler(self.config, self.numnodes)
        if name is None:
            return files
        if node.gateway.id == name:
            return [file for file in files if not file.startswith(_ON_SERVERS)]
        return sorted(files, key=lambda file: not file.startswith(_ON_SERVERS))
