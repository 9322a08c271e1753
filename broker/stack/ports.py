"""Chooses free TCP ports on the loopback interface.

A server's port is chosen once and saved, so that it survives a kill and restart. Ports assigned by the operating system
would not do, because they come from the ephemeral range: while a server is down, an outgoing connection could take its
port, and a retrying client could even connect to itself. The ports chosen here are below that range.
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
"""Linux uses 32768-60999 for outgoing connections, other systems 49152 and up."""

_STRIDE: Final = 97
"""Distance between the ports at which processes with adjacent ids start their search."""


def is_free(port: int) -> bool:
    """Return whether ``port`` is free on the loopback interface."""
    with socket.socket() as probe:
        # With this option, connections in TIME_WAIT do not block the port; the servers bind the same way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose_port(usual: int | None = None) -> int:
    """Return the usual port if it is free, otherwise another free port. Never returns the same port twice."""
    with _lock:
        port = _search(usual)
        _given.add(port)
        return port


_lock = threading.Lock()
_given: set[int] = set()
"""Ports already handed out; they look free until a server binds them."""


def _search(usual: int | None) -> int:
    size = _LAST - _FIRST
    start = os.getpid() * _STRIDE
    candidates = (_FIRST + (start + step) % size for step in range(size))
    for port in itertools.chain(() if usual is None else (usual,), candidates):
        if port not in _given and is_free(port):
            return port
    raise OSError(f"no free TCP port between {_FIRST} and {_LAST} on {LOOPBACK}; stop some servers")
