"""The simulator with a real MQTT broker: every message arrives in order and byte for byte, despite failures."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker.stack import LocalStack, Mqtt
from broker.times import TIME_MIN_NS
from simulator.generate import Plan, generate
from simulator.recording import InvalidLineError, read_head
from simulator.settings import NO_EVENTS
from tests.integration.tcp_door import Door

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60
IN_FLIGHT_MAX = 200
ODD_LINES = [b"", b"no json", b'{"Timestamp": 1', b"\xff\x00\xfe", b'{"Timestamp": 1, "x": NaN}']


class Subscriber:
    """Collects the messages of a topic. Its session survives a restart of the broker."""

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
        self._client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self._client.loop_start()
        wait_until(lambda: self._ready, "the subscription")

    def close(self) -> None:
        """Close the connection and end the thread and the session."""
        properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call] # as above
        properties.SessionExpiryInterval = 0
        self._client.disconnect(properties=properties)
        self._client.loop_stop()

    def _on_subscribe(self, *_: object) -> None:
        self._ready = True

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self.payloads.append(bytes(message.payload))


def wait_until(reached: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not reached():
        if time.monotonic() > until:
            pytest.fail(f"waited {DEADLINE_S} s for {what}")
        time.sleep(0.01)


@pytest.fixture
def broker(stack: LocalStack) -> Mqtt:
    """The MQTT broker shared by all tests. A test that stops it must restart it."""
    stack.up([stack.mqtt])
    return stack.mqtt


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.json"
    lines = list(generate(Plan(5_000, seed=11, disorder=0.1, repeats=0.01, equal=0.01)))
    for place, odd in enumerate(ODD_LINES):
        lines.insert(1_000 * place, odd)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


@pytest.fixture
def door(broker: Mqtt, events: Path) -> Iterator[Door]:
    """A TCP proxy in front of the broker. It carries half of the events, and the rest once it is released or shut.

    However long a test is held up, the simulator has not sent everything before then.
    """
    made = Door("127.0.0.1", broker.port, hold_after=events.stat().st_size // 2)
    made.open()
    yield made
    made.shut()


Simulate = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def simulate() -> Iterator[Simulate]:
    """A function that starts the simulator with a port, an events file and flags. At the end, stragglers are killed."""
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


def finish(process: subprocess.Popen[str], status: int = 0) -> str:
    """Wait until the simulator ends with ``status``. Return its output."""
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == status, out + err
    return out + err


def in_time_order(path: Path) -> list[bytes]:
    """Return the lines sorted by time. A line without a time stays after its predecessor."""
    placed, now_ns = [], TIME_MIN_NS - 1
    for line in path.read_bytes().split(b"\n")[:-1]:
        with suppress(InvalidLineError):
            now_ns = read_head(line).time_ns
        placed.append((now_ns, line))
    return [line for _, line in sorted(placed, key=lambda each: each[0])]


@pytest.mark.parametrize("qos", [1, 2])
def test_every_line_arrives_once_in_order_and_byte_for_byte(
    broker: Mqtt, events: Path, qos: int, simulate: Simulate
) -> None:
    topic = f"test/{uuid.uuid4().hex}"
    subscriber = Subscriber(broker.port, qos, topic)
    said = finish(simulate(broker.port, events, "--rate", "max", "--qos", str(qos), "--topic", topic), NO_EVENTS)
    expected = in_time_order(events)
    wait_until(lambda: len(subscriber.payloads) >= len(expected), "the messages")
    subscriber.close()
    assert subscriber.payloads == expected
    assert f"{len(ODD_LINES)} not events, sent unchanged" in said
    assert f"{len(expected):,} sent, {len(expected):,} acknowledged" in said


def test_as_recorded_keeps_the_order_of_the_file(broker: Mqtt, events: Path, simulate: Simulate) -> None:
    subscriber = Subscriber(broker.port, 2)
    finish(simulate(broker.port, events, "--rate", "max", "--as-recorded"), NO_EVENTS)
    expected = events.read_bytes().split(b"\n")[:-1]
    wait_until(lambda: len(subscriber.payloads) >= len(expected), "the messages")
    subscriber.close()
    assert subscriber.payloads == expected


@pytest.mark.parametrize("qos", [1, 2])
def test_a_restart_of_the_broker_loses_nothing_and_doubles_only_what_was_in_flight(
    broker: Mqtt, door: Door, events: Path, qos: int, simulate: Simulate
) -> None:
    subscriber = Subscriber(broker.port, qos)
    process = simulate(door.port, events, "--rate", "2500", "--qos", str(qos), "--in-flight", str(IN_FLIGHT_MAX))
    wait_until(lambda: len(subscriber.payloads) >= 1_000, "messages")
    broker.stop()
    broker.start()
    door.release()
    said = finish(process, NO_EVENTS)
    expected = in_time_order(events)
    distinct = len(set(expected))
    wait_until(lambda: len(set(subscriber.payloads)) >= distinct, "the messages")
    subscriber.close()
    assert "reconnections" in said
    assert "unacknowledged" not in said.splitlines()[0]
    assert set(subscriber.payloads) == set(expected)
    if qos == 2:
        # HiveMQ loses a publisher's packet identifiers during a restart, so it accepts in-flight messages as new ones.
        # Messages in flight to a subscriber at QoS 1 are redelivered as well.
        assert len(subscriber.payloads) <= len(expected) + IN_FLIGHT_MAX


def test_a_lost_connection_at_qos_2_is_resumed_and_doubles_nothing(
    broker: Mqtt, door: Door, events: Path, simulate: Simulate
) -> None:
    subscriber = Subscriber(broker.port, 2)
    process = simulate(door.port, events, "--rate", "2500", "--qos", "2")
    for count in (1_000, 2_000, 3_000):
        wait_until(lambda count=count: len(subscriber.payloads) >= count, "messages")  # type: ignore[misc]
        door.shut()
        door.open()
    said = finish(process, NO_EVENTS)
    expected = in_time_order(events)
    wait_until(lambda: len(subscriber.payloads) >= len(expected), "the messages")
    subscriber.close()
    assert "reconnections" in said
    assert sorted(subscriber.payloads) == sorted(expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_endless_replay_which_reports_its_counts(
    broker: Mqtt, events: Path, number: signal.Signals, simulate: Simulate
) -> None:
    subscriber = Subscriber(broker.port, 2)
    # With so few messages in flight, all are acknowledged within the two seconds for which the simulator then waits.
    slowly = ("--rate", "200", "--in-flight", "20")
    process = simulate(broker.port, events, *slowly, "--loop", "--rebase", "now")
    wait_until(lambda: len(subscriber.payloads) >= 200, "messages")
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == NO_EVENTS, err
    assert out.startswith("simulator: stopped, ")
    count = int(out.split()[2].replace(",", ""))
    assert f"{count:,} sent, {count:,} acknowledged" in out
    wait_until(lambda: len(subscriber.payloads) >= count, "the messages")
    subscriber.close()
    assert len(subscriber.payloads) == count


def test_rounds_arrive_with_new_ids_and_times_that_never_jump_back(
    broker: Mqtt, tmp_path: Path, simulate: Simulate
) -> None:
    path = tmp_path / "small.json"
    path.write_bytes(b"".join(line + b"\n" for line in generate(Plan(200, seed=2, disorder=0.1, repeats=0.0))))
    subscriber = Subscriber(broker.port, 2)
    before_ms = time.time_ns() // 1_000_000
    finish(simulate(broker.port, path, "--rate", "max", "--loop", "3", "--rebase", "now"))
    wait_until(lambda: len(subscriber.payloads) >= 600, "the messages")
    subscriber.close()
    received = [json.loads(payload) for payload in subscriber.payloads]
    times = [event["Timestamp"] for event in received]
    assert times == sorted(times)
    assert before_ms <= times[0] <= time.time_ns() // 1_000_000
    assert len({event["id"] for event in received}) == 600


def test_the_journal_has_a_line_for_each_message(broker: Mqtt, tmp_path: Path, simulate: Simulate) -> None:
    path, journal = tmp_path / "small.json", tmp_path / "journal"
    lines = list(generate(Plan(300, seed=2, disorder=0, repeats=0)))
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    journal.write_text("before\t1\n")
    finish(simulate(broker.port, path, "--rate", "max", "--journal", str(journal)))
    noted = [line.split("\t") for line in journal.read_text().splitlines()]
    assert noted[0] == ["before", "1"]
    assert [event_id for event_id, _ in noted[1:]] == [json.loads(line)["id"] for line in lines]
    moments = [int(moment) for _, moment in noted[1:]]
    assert moments == sorted(moments)


def test_without_a_broker_it_ends_with_1_and_names_what_to_check(events: Path, simulate: Simulate) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = simulate(port, events, "--connect-timeout", "0.5")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "BROKER_HOST" in err
    assert "Traceback" not in err
