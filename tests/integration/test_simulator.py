"""The simulator against a real MQTT broker: everything arrives, in order and byte for byte, whatever happens.

The broker of the restart tests is started here, because it has to be stopped in the middle.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker.stack.parts import find_mosquitto
from simulator.generate import Plan, generate
from simulator.recording import TIMESTAMP_MS_MAX, read_head

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60
ODD_LINES = [b"", b"no json", b'{"Timestamp": 1', b"\xff\x00\xfe", b'{"Timestamp": 1, "x": NaN}']


class Subscriber:
    """Collects what arrives at a topic, in a session that survives a restart of the broker."""

    def __init__(self, port: int, qos: int, topic: str = "machine/states") -> None:
        self.payloads: list[bytes] = []
        self._ready = False
        self._qos = qos
        self._client = Client(
            CallbackAPIVersion.VERSION2, client_id=f"test-{uuid.uuid4().hex}", protocol=MQTTProtocolVersion.MQTTv5
        )
        self._client.on_message = self._on_message
        self._client.on_connect = lambda client, *_: client.subscribe(topic, qos)
        self._client.on_subscribe = self._on_subscribe
        self._client.reconnect_delay_set(1, 1)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # paho has no types for it
        properties.SessionExpiryInterval = 3600
        properties.ReceiveMaximum = 1000
        # Not a clean start: mosquitto 2.0.11 writes no other sessions to its disk.
        self._client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self._client.loop_start()
        wait_until(lambda: self._ready, "the subscription")

    def close(self) -> None:
        """End the connection and its thread."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_subscribe(self, *_: object) -> None:
        self._ready = True

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self.payloads.append(bytes(message.payload))


class Mosquitto:
    """A broker of the test's own, with persistence, that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._folder = folder
        self._config = folder / "mosquitto.conf"
        # Without a user mosquitto, started as root, would give up the right to its own folder.
        user = "user root\n" if os.geteuid() == 0 else ""
        self._config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\n{user}"
            f"persistence_location {folder}/\nmax_inflight_messages 1000\nmax_queued_messages 0\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")),
                    "-c",
                    str(self._config),
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._listens, "mosquitto")

    def stop(self) -> None:
        """Stop it regularly: it writes its sessions to its file."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(DEADLINE_S)
            self._process = None

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False


def wait_until(reached: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not reached():
        if time.monotonic() > until:
            pytest.fail(f"waited {DEADLINE_S} s for {what}")
        time.sleep(0.01)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    if shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.json"
    lines = list(generate(Plan(5_000, seed=11, disorder=0.1, repeats=0.01, equal=0.01)))
    for place, odd in enumerate(ODD_LINES):
        lines.insert(1_000 * place, odd)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


Simulate = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def simulate() -> Iterator[Simulate]:
    """Start the simulator with a port, an events file and flags; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(port: int, events: Path, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                sys.executable,
                "simulator/simulator.py",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                *arguments,
            ],
            cwd=ROOT,
            env={**os.environ, "EVENT_FILE": str(events)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a success; everything that was said."""
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, out + err
    return out + err


def in_time_order(path: Path) -> list[bytes]:
    """The lines by time, a line without one behind the line before it."""
    placed, now_ms = [], -TIMESTAMP_MS_MAX
    for line in path.read_bytes().split(b"\n")[:-1]:
        head = read_head(line)
        now_ms = now_ms if head is None else head.timestamp_ms
        placed.append((now_ms, line))
    return [line for _, line in sorted(placed, key=lambda each: each[0])]


@pytest.mark.parametrize("qos", [1, 2])
def test_every_line_arrives_once_in_order_and_byte_for_byte(
    mqtt: tuple[str, int], events: Path, qos: int, simulate: Simulate
) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    topic = f"test/{uuid.uuid4().hex}"
    subscriber = Subscriber(mqtt[1], qos, topic)
    said = finish(simulate(mqtt[1], events, "--rate", "max", "--qos", str(qos), "--topic", topic))
    expected = in_time_order(events)
    wait_until(lambda: len(subscriber.payloads) >= len(expected), "the messages")
    subscriber.close()
    assert subscriber.payloads == expected
    assert f"{len(ODD_LINES)} no events, sent as they are" in said
    assert f"{len(expected):,} sent, {len(expected):,} acknowledged" in said


def test_as_recorded_keeps_the_order_of_the_file(mosquitto: Mosquitto, events: Path, simulate: Simulate) -> None:
    subscriber = Subscriber(mosquitto.port, 2)
    finish(simulate(mosquitto.port, events, "--rate", "max", "--as-recorded"))
    expected = events.read_bytes().split(b"\n")[:-1]
    wait_until(lambda: len(subscriber.payloads) >= len(expected), "the messages")
    subscriber.close()
    assert subscriber.payloads == expected


@pytest.mark.parametrize("qos", [1, 2])
def test_a_restart_of_the_broker_loses_nothing(
    mosquitto: Mosquitto, events: Path, qos: int, simulate: Simulate
) -> None:
    subscriber = Subscriber(mosquitto.port, qos)
    process = simulate(mosquitto.port, events, "--rate", "2500", "--qos", str(qos))
    wait_until(lambda: len(subscriber.payloads) >= 1_000, "messages")
    mosquitto.stop()
    mosquitto.start()
    said = finish(process)
    expected = in_time_order(events)
    distinct = len(set(expected))
    wait_until(lambda: len(set(subscriber.payloads)) >= distinct, "the messages")
    if qos == 2:
        wait_until(lambda: len(subscriber.payloads) >= len(expected), "the messages")
    subscriber.close()
    assert "reconnections" in said
    assert "unacknowledged" not in said.splitlines()[0]
    if qos == 2:
        # Exactly once: the broker kept the session. The order of what was in flight is the broker's affair.
        assert sorted(subscriber.payloads) == sorted(expected)
    else:
        assert set(subscriber.payloads) == set(expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_endless_replay_and_tells_how_far_it_came(
    mosquitto: Mosquitto, events: Path, number: signal.Signals, simulate: Simulate
) -> None:
    subscriber = Subscriber(mosquitto.port, 2)
    process = simulate(mosquitto.port, events, "--rate", "2000", "--loop", "--rebase", "now")
    wait_until(lambda: len(subscriber.payloads) >= 200, "messages")
    process.send_signal(number)
    out, err = process.communicate(timeout=5)
    assert process.returncode == 0, err
    assert out.startswith("simulator: stopped, ")
    count = int(out.split()[2].replace(",", ""))
    assert f"{count:,} sent, {count:,} acknowledged" in out
    wait_until(lambda: len(subscriber.payloads) >= count, "the messages")
    subscriber.close()
    assert len(subscriber.payloads) == count


def test_rounds_arrive_with_new_ids_and_times_that_never_jump_back(
    mosquitto: Mosquitto, tmp_path: Path, simulate: Simulate
) -> None:
    path = tmp_path / "small.json"
    path.write_bytes(b"".join(line + b"\n" for line in generate(Plan(200, seed=2, disorder=0.1, repeats=0.0))))
    subscriber = Subscriber(mosquitto.port, 2)
    before_ms = time.time_ns() // 1_000_000
    finish(simulate(mosquitto.port, path, "--rate", "max", "--loop", "3", "--rebase", "now"))
    wait_until(lambda: len(subscriber.payloads) >= 600, "the messages")
    subscriber.close()
    received = [json.loads(payload) for payload in subscriber.payloads]
    times = [event["Timestamp"] for event in received]
    assert times == sorted(times)
    assert before_ms <= times[0] <= time.time_ns() // 1_000_000
    assert len({event["id"] for event in received}) == 600


def test_the_journal_has_a_line_for_each_message(mosquitto: Mosquitto, tmp_path: Path, simulate: Simulate) -> None:
    path, journal = tmp_path / "small.json", tmp_path / "journal"
    lines = list(generate(Plan(300, seed=2, disorder=0, repeats=0)))
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    journal.write_text("before\t1\n")
    finish(simulate(mosquitto.port, path, "--rate", "max", "--journal", str(journal)))
    noted = [line.split("\t") for line in journal.read_text().splitlines()]
    assert noted[0] == ["before", "1"]
    assert [event_id for event_id, _ in noted[1:]] == [json.loads(line)["id"] for line in lines]
    moments = [int(moment) for _, moment in noted[1:]]
    assert moments == sorted(moments)


def test_without_a_broker_it_ends_with_1_and_says_what_to_check(events: Path, simulate: Simulate) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = simulate(port, events, "--connect-timeout", "0.5")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "BROKER_HOST" in err
    assert "Traceback" not in err
