"""A TCP proxy ("wire") between a client and a server. It can cut, stall or slow down connections, or respond itself.

It forwards bytes. The only response that it sends itself is HTTP "503 Service Unavailable". All wires of a run share
one thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from broker.stack.ports import choose_port

_BLOCK_BYTES: Final = 65_536
_UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_LOOPBACK: Final = "127.0.0.1"


def listeners(wires: Mapping[str, Wire]) -> dict[str, str]:
    """Return the settings of a Kafka broker with one more listener per wire, which advertises the wire's address.

    A client that connects through a wire therefore also gets the address of the wire, not that of the broker. The keys
    name the wires. The wires get their targets.
    """
    for wire in wires.values():
        wire.target = choose_port(None)
    names = {key: key.upper() for key in wires}
    inner = [f"{names[key]}://{_LOOPBACK}:{wire.target}" for key, wire in wires.items()]
    outer = [f"{names[key]}://{_LOOPBACK}:{wire.port}" for key, wire in wires.items()]
    protocols = [f"{name}:PLAINTEXT" for name in names.values()]
    return {
        "listeners": ",".join(["PLAINTEXT://127.0.0.1:${port}", "CONTROLLER://127.0.0.1:${controller_port}", *inner]),
        "advertised.listeners": ",".join(["PLAINTEXT://127.0.0.1:${port}", *outer]),
        "listener.security.protocol.map": ",".join(["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", *protocols]),
    }


class Wires:
    """The wires and their thread. `close` ends all of them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        self._wires: list[Wire] = []

    def add(self, port: int = 0) -> Wire:
        """Add a wire on a port of the loopback interface, by default a free one. It has no target yet."""
        wire = Wire()
        self._wires.append(wire)
        self._run(wire.listen(port))
        return wire

    def cut(self, wire: Wire) -> None:
        """Close the connections and refuse new ones, until `mend`."""
        wire.is_cut = True
        self._run(wire.break_all())

    def mend(self, wire: Wire) -> None:
        """End all faults of the wire: forward everything again, without delay."""
        wire.is_cut = wire.is_silent = wire.is_refusing = False
        wire.delay_s = 0.0
        self._run(wire.flow())

    def silence(self, wire: Wire) -> None:
        """Accept bytes but forward none, until `mend`."""
        wire.is_silent = True

    def refuse(self, wire: Wire) -> None:
        """Answer each request with HTTP 503, until `mend`."""
        wire.is_refusing = True
        self._run(wire.break_all())

    def close(self) -> None:
        """Close all wires and stop the thread."""
        for wire in self._wires:
            self._run(wire.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


class Wire:
    """A wire. ``port`` is where clients connect; ``target`` is the port of the server. Changed through `Wires`."""

    def __init__(self) -> None:
        self.port = 0
        self.target = 0
        self.delay_s = 0.0
        self.is_cut = self.is_silent = self.is_refusing = False
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._carrying: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> None:
        """Start listening."""
        self._server = await asyncio.start_server(self._accept, _LOOPBACK, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def break_all(self) -> None:
        """Close all connections."""
        for task in list(self._carrying):
            task.cancel()

    async def flow(self) -> None:
        """Wake stalled connections."""
        self._flowing.set()
        self._flowing = asyncio.Event()

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        await self.break_all()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._carrying.add(task)
        try:
            await self._serve(reader, writer)
            writer.close()  # data already written is still sent
        except (OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            writer.transport.abort()  # any failure ends both connections
        finally:
            self._carrying.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            return
        if self.is_refusing:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_UNAVAILABLE)
            await writer.drain()
            writer.write_eof()
            await reader.read()
            return
        far_reader, far_writer = await asyncio.open_connection(_LOOPBACK, self.target)
        ways = [asyncio.ensure_future(self._carry(*way)) for way in ((reader, far_writer), (far_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            far_writer.close()
        except asyncio.CancelledError:
            far_writer.transport.abort()
            raise
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while block := await source.read(_BLOCK_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            while self.is_silent:
                await self._flowing.wait()
            sink.write(block)
            await sink.drain()
