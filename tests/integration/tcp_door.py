"""A TCP proxy ("door") in front of a server. Shutting it breaks existing connections and refuses new ones.

To clients of the door, the server seems to go down and come back, while other tests continue to use it. The door
forwards bytes and does not depend on the protocol.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Callable

from broker.stack.ports import choose_port


class Door:
    """A door on a free port of the loopback interface, initially shut.

    ``hold_after``: each connection carries only about this many bytes to the server, until `release` or `shut` is
    called. A client can then not finish before a test has done what it wants to do in the meantime.
    """

    def __init__(self, host: str, port: int, *, hold_after: float = math.inf) -> None:
        self._target = (host, port)
        self._hold_after = hold_after
        self._released = threading.Event()
        # Below the range from which outgoing connections could take it while the door is shut.
        self.port = choose_port()
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._connections: list[socket.socket] = []
        self._carrying: list[threading.Thread] = []

    def open(self) -> None:
        """Accept and forward connections."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accepting = _started(self._accept, self._listener)

    def shut(self) -> None:
        """Break the connections and refuse new ones."""
        if self._listener is not None and self._accepting is not None:
            _break(self._listener)
            # End the accepting thread first, so that no connection is added in the meantime.
            self._accepting.join()
            self._listener.close()
        self._listener = self._accepting = None
        for connection in self._connections:
            _break(connection)
        # Only now, so that what is held is not sent just before the connection breaks.
        self.release()
        for thread in self._carrying:
            thread.join()
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._carrying.clear()

    def release(self) -> None:
        """From now on, carry everything."""
        self._released.set()

    def _hold(self, carried: int) -> None:
        if carried >= self._hold_after:
            self._released.wait()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()  # the server itself is down
                continue
            self._connections += [near, far]
            self._carrying += [_started(_carry, near, far, self._hold), _started(_carry, far, near)]


def _started(work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _carry(source: socket.socket, sink: socket.socket, hold: Callable[[int], None] = lambda _carried: None) -> None:
    """Forward one direction of a connection until its source is closed. If one side breaks, break the other as well.

    ``hold`` is called with the number of bytes forwarded so far, and returns when more may be forwarded.
    """
    carried = 0
    try:
        while block := source.recv(65_536):
            sink.sendall(block)
            carried += len(block)
            hold(carried)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        _break(source)
        _break(sink)


def _break(one: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side has closed it
        one.shutdown(socket.SHUT_RDWR)
