"""Server and network faults: acts on Kafka, MQTT and InfluxDB, and on the wires to them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from broker.stack.errors import StackError
from broker.stack.servers import Server
from tests.chaos.limits import empty_disk, fill_disk, set_clock
from tests.chaos.pipeline import SERVERS, ChaosPipeline
from tests.chaos.schedule import Act

_PROCESS: Final = {"kill", "stop", "freeze"}
_WIRE: Final = {"cut", "silence", "delay", "slow", "refuse"}
_DELAYS_S: Final = {"delay": 0.3, "slow": 2.0}


class ServerFaults:
    """Begins and ends faults.

    Each server has a thread that handles the faults of its process in order. They take time, and must not delay other
    faults.
    """

    def __init__(self, pipeline: ChaosPipeline) -> None:
        self._servers = pipeline.servers
        self._threads = {name: ThreadPoolExecutor(1, name) for name in SERVERS}
        self._pending: list[Future[None]] = []

    def begin(self, act: Act) -> bool:
        """Begin a fault. Return False for a fault of a service, which is not handled here."""
        if act.target in SERVERS and act.fault in _PROCESS:
            self._submit(act, begins=True)
        elif act.fault in _WIRE:
            self._begin_on_wires(act)
        elif act.fault == "fill":
            fill_disk(self._servers.disks[act.target])
        elif act.fault == "clock":
            set_clock(self._servers.clocks[act.target], act.count)
        else:
            return False
        return True

    def end(self, act: Act) -> bool:
        """End a fault. Return False for a fault of a service, which is not handled here."""
        if act.target in SERVERS and act.fault in _PROCESS:
            self._submit(act, begins=False)
        elif act.fault in _WIRE:
            for wire in self._wires(act):
                self._servers.wires.mend(wire)
        elif act.fault == "fill":
            empty_disk(self._servers.disks[act.target])
            self._submit(act, begins=False)
        elif act.fault == "clock":
            set_clock(self._servers.clocks[act.target], 0)
        else:
            return False
        return True

    def wait(self) -> None:
        """Wait until all faults are handled. Raise any error that occurred."""
        for one in self._pending:
            one.result()

    def close(self) -> None:
        """Stop the threads. Pending faults are dropped."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)

    def _submit(self, act: Act, *, begins: bool) -> None:
        handle = self._begin_on_server if begins else self._end_on_server
        self._pending.append(self._threads[act.target].submit(handle, act))

    def _begin_on_server(self, act: Act) -> None:
        server = self._server(act.target)
        if act.fault == "kill":
            server.kill()
        elif act.fault == "stop":
            server.stop()
        else:
            server.pause()

    def _end_on_server(self, act: Act) -> None:
        server = self._server(act.target)
        if act.fault == "freeze":
            server.resume()
        server.start()
        try:
            server.wait_ready()
        except StackError:
            if act.fault != "fill":
                raise
            # The server was already exiting because its disk was full.
            server.start()
            server.wait_ready()

    def _server(self, name: str) -> Server:
        return {server.name: server for server in self._servers.stack.servers}[name]

    def _wires(self, act: Act) -> list[Any]:
        return [self._servers.influxdb] if act.target == "influxdb" else self._servers.wires_of(act.target)

    def _begin_on_wires(self, act: Act) -> None:
        wires = self._servers.wires
        for wire in self._wires(act):
            if act.fault == "cut":
                wires.cut(wire)
            elif act.fault == "silence":
                wires.silence(wire)
            elif act.fault == "refuse":
                wires.refuse(wire)
            else:
                wire.delay_s = _DELAYS_S[act.fault]
