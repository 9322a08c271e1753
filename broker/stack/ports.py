"""Chooses free TCP ports on the loopback interface.

A server's port is chosen once and saved, so that the server keeps it across a kill and restart. Ports assigned
by the operating system are not suitable, because they come from the ephemeral range: while a server is down, an
outgoing connection could take its port, and a client that keeps trying to connect could even connect to itself. This
module therefore chooses ports below that range.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
from typing import Final

LOOPBACK: Final = "127.0.0.1"

_FIRST: Final = 20_000
_LAST: Final = 32_000
"""The servers' ports are below the ranges for outgoing connections: 32768-60999 on Linux, 49152 and up on other
systems."""

_STRIDE: Final = 97
"""Processes with adjacent ids begin their searches this many ports apart."""


def is_free(port: int) -> bool:
    """Return whether ``port`` is free on the loopback interface."""
    with socket.socket() as probe:
        # With this option, which the servers also use, a port is free even if it has connections in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose_port(usual: int | None = None) -> int:
    """Return the usual port if it is free, otherwise another free port. Never return the same port twice.

    Raises OSError if no port is free.
    """
    with _lock:
        port = _search(usual)
        _given.add(port)
        return port


_lock = threading.Lock()
_given: set[int] = set()
"""The ports that `choose_port` has already returned. They look free until a server binds them."""


def _search(usual: int | None) -> int:
    size = _LAST - _FIRST
    start = os.getpid() * _STRIDE
    candidates = (_FIRST + (start + step) % size for step in range(size))
    for port in itertools.chain(() if usual is None else (usual,), candidates):
        if port not in _given and is_free(port):
            return port
    raise OSError(f"no free TCP port between {_FIRST} and {_LAST} on {LOOPBACK}; stop some servers")
