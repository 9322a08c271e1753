"""Free TCP ports on the loopback.

A server's port is chosen once and written down, so that it stays the same when the server is killed and
started again. Why not ask the system for any free port: it answers from the range that outgoing connections
use as well; while a server is down, another connection could take its port, and a client that retries could
even reach itself. The ports here come from below that range.
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
"""Processes with neighbouring ids begin their search this far apart."""


def is_free(port: int) -> bool:
    """True where nobody listens on ``port`` of the loopback."""
    with socket.socket() as probe:
        # Connections that are being forgotten do not count: the servers bind in the same way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose_port(usual: int | None = None) -> int:
    """The usual port where it is free, else another free one; never one given to this process before."""
    with _lock:
        port = _search(usual)
        _given.add(port)
        return port


_lock = threading.Lock()
_given: set[int] = set()
"""A port that was chosen but is not listened on yet still looks free."""


def _search(usual: int | None) -> int:
    size = _LAST - _FIRST
    start = os.getpid() * _STRIDE
    candidates = (_FIRST + (start + step) % size for step in range(size))
    for port in itertools.chain(() if usual is None else (usual,), candidates):
        if port not in _given and is_free(port):
            return port
    raise OSError(f"no free TCP port between {_FIRST} and {_LAST} on {LOOPBACK}; stop some servers")
