"""Which offsets the service commits, and when it stops. Its consumer and its writers are scripted."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, KafkaError, TopicPartition

from broker.metrics import TelemetryServer
from broker.settings import MetricsSettings
from broker.wire.records import encode
from db_connector.kafka.reader import KafkaFailureError
from db_connector.kafka.results import Results
from db_connector.kafka.target import target_of
from db_connector.progress import Journal
from db_connector.service import Service
from db_connector.settings import DbConnectorSettings
from db_connector.writer import Outcome
from tests.unit.db_connector.test_contract import FakeInflux, joined

SINK = FakeInflux()
SINK.target = "joined in -/lsb/autogen, points of form 2"
OWN = target_of(SINK)


class _Message:
    """A record, or an error event of the client."""

    def __init__(self, offset: int, value: bytes = b"", error: KafkaError | None = None) -> None:
        self._offset, self._value, self._error = offset, value, error

    def error(self) -> KafkaError | None:
        return self._error

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value


class _Consumer:
    """Assigns partition 0 and returns the batches of ``script``, one per call."""

    def __init__(self, config: dict[str, Any], script: list[list[_Message]]) -> None:
        self.config = config
        self.stop = threading.Event()
        self._until_s = time.monotonic() + 60
        self._on_commit = config["on_commit"]
        self._script = deque(script)
        self.known = (0, OWN)
        """The committed offset of the group, and its metadata."""
        self.ends = (0, 0)
        """The beginning and the end of the log."""
        self.begun: list[int] = []
        self.commits: list[int] = []
        self.targets: set[str | None] = set()
        self.after_reset: dict[int, list[list[_Message]]] = {}
        """For each offset, the batches returned after a seek back to it, instead of the rest of the script."""

    def subscribe(self, topics: list[str], on_assign: Callable[..., None], **callbacks: Callable[..., None]) -> None:
        self.callbacks = callbacks
        on_assign(self, [TopicPartition(topics[0], 0)])

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout > 0
        return [TopicPartition(partition.topic, partition.partition, *self.known) for partition in partitions]

    def consume(self, _count: int, _timeout_s: float) -> list[_Message]:
        if not self._script and time.monotonic() > self._until_s:
            self.stop.set()  # the script has ended
        return self._script.popleft() if self._script else []

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        assert asynchronous
        self.commits += [partition.offset for partition in offsets]
        self.targets |= {partition.metadata for partition in offsets}
        self._on_commit(None, offsets)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.begun += [partition.offset for partition in partitions]

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        (place,) = partitions
        self._script = deque(self.after_reset.pop(place.offset))

    def assignment(self) -> list[TopicPartition]:
        return []

    def pause(self, _partitions: object) -> None: ...

    def resume(self, _partitions: object) -> None: ...

    def get_watermark_offsets(self, _partition: object, timeout: float = 0, *, cached: bool = False) -> tuple[int, int]:
        assert cached != (timeout > 0)
        # The client does not know the beginning of the log, and it knows the end only after its first fetch.
        return (OFFSET_INVALID, OFFSET_INVALID) if cached else self.ends

    def unsubscribe(self) -> None: ...

    def poll(self, _timeout_s: float) -> None: ...

    def close(self) -> None: ...


class _Writer:
    """A writer that succeeds at once, and returns the outcomes when the service polls for them."""

    def __init__(self) -> None:
        self._batches: deque[Results] = deque()
        self.writer = SimpleNamespace(failures=2, is_unavailable=True, sink=SINK)

    @property
    def in_flight(self) -> int:
        return len(self._batches)

    def submit(self, batch: Results) -> None:
        self._batches.append(batch)

    def outcome(self, timeout_s: float) -> Outcome[Results] | None:
        # Returned late, so that two batches are in flight when the first is settled.
        if not self._batches or (timeout_s == 0 and self.in_flight < 2):
            return None
        return Outcome(self._batches.popleft(), written=True, refusals=[], acknowledged_ns=time.time_ns())


class _DeadLetters:
    """A dead letter writer whose records are never acknowledged. The first dead letter sets the stop signal."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.sent: list[int | None] = []

    def send(self, message: _Message, _reason: str, _identity: str | None) -> None:
        self.sent.append(message.offset())
        self._stop.set()

    def delivered(self, _timeout_s: float) -> bool:
        return False


def record(offset: int) -> _Message:
    return _Message(offset, encode(joined(identity=f"power:0:{offset}:{offset}")))


def service_of(
    monkeypatch: pytest.MonkeyPatch, stop: threading.Event, script: list[list[_Message]]
) -> tuple[Service, _Consumer, _DeadLetters]:
    made: list[_Consumer] = []

    def make(config: dict[str, Any], logger: object) -> _Consumer:
        assert logger is not None
        made.append(_Consumer(config, script))
        return made[0]

    monkeypatch.setattr("db_connector.kafka.reader.Consumer", make)
    dead_letters, writer = _DeadLetters(stop), _Writer()
    telemetry = TelemetryServer(MetricsSettings.model_validate({"listen": 0}))
    service = Service(DbConnectorSettings(), writer, dead_letters, stop, telemetry=telemetry)  # type: ignore[arg-type] # scripted
    made[0].stop = stop
    return service, made[0], dead_letters


def test_a_result_that_cannot_be_decoded_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result nested too deeply for the decoder once stopped the service, and did so again after each restart."""
    stop, nested = threading.Event(), b'{"left":{"quantity":' + b"[" * 100_000
    service, _, dead_letters = service_of(monkeypatch, stop, [[record(0)], [_Message(1, nested)], [record(2)]])
    service.run()
    assert dead_letters.sent == [1]


def test_nothing_behind_an_undelivered_dead_letter_is_committed_at_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    script = [[record(0)], [_Message(1, b"no pair")], [record(2), record(3)], [record(4)]]
    service, consumer, dead_letters = service_of(monkeypatch, stop, script)
    service.run()
    assert dead_letters.sent == [1]
    assert max(consumer.commits, default=0) <= 1, "records after the dead letter would never be read again"


def test_what_was_read_and_what_the_database_has_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    service, _, _ = service_of(monkeypatch, stop, [[record(0), record(1)], [_Message(2, b"no pair")], [record(3)]])
    telemetry: TelemetryServer = service._telemetry  # noqa: SLF001 - the server passed to the service
    assert telemetry.unready() == "it is starting"
    service.run()
    names = ("results_total", "points_total", "rejected_total", "failed_writes_total", "database_up")
    found = [telemetry.registry.get_sample_value(f"lsb_db_connector_{name}") for name in names]
    assert found == [4, 2, 0, 2, 0], (
        "the dead letter was not delivered, and the writer reports its database as unavailable"
    )
    assert telemetry.registry.get_sample_value("lsb_db_connector_write_duration_seconds_count") == 1
    assert telemetry.unready() == "the database does not accept results"


@pytest.mark.parametrize(("known", "lag"), [((40, OWN), 60), ((OFFSET_INVALID, ""), 90)])
def test_what_was_never_acknowledged_is_lag(monkeypatch: pytest.MonkeyPatch, known: tuple[int, str], lag: int) -> None:
    service, consumer, _ = service_of(monkeypatch, threading.Event(), [])
    consumer.known, consumer.ends = known, (10, 100)
    service._reader.subscribe()  # noqa: SLF001 - the first step of `run`
    assert service._reader.lags() == {0: lag}  # noqa: SLF001 - the lag of the log and the metrics


def test_revoked_partitions_are_distinguished_from_lost_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "db_connector")
    service, consumer, _ = service_of(monkeypatch, threading.Event(), [])
    service._reader.subscribe()  # noqa: SLF001 - the first step of `run`
    for callback in ("on_revoke", "on_lost"):
        consumer.callbacks[callback](consumer, [TopicPartition("machine.out", 0)])
    given, lost = (record.getMessage() for record in caplog.records[-2:])
    assert given.endswith("partitions 0 move to another member")
    assert "partitions 0 were lost because the group" in lost


BAD = KafkaError(KafkaError._BAD_MSG, "MessageSet at offset 2 failed CRC32C check")  # noqa: SLF001 - its public name


def test_no_offset_behind_an_error_inside_a_batch_is_committed_and_its_records_are_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("db_connector.kafka.reader._RETRY_S", 0.01)
    stop = threading.Event()
    # The script behaves like the client, which continues after the error or at an offset that does not exist.
    nowhere = _Message(2, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))  # noqa: SLF001 - its public name
    script = [[record(0), record(1), _Message(2, error=BAD), record(4)], [nowhere, record(5)], [record(6)]]
    service, consumer, _ = service_of(monkeypatch, stop, script)
    consumer.after_reset = {2: [[record(2), record(3), record(4)], [_Message(5, b"no pair")], [record(6)]]}
    service.run()
    assert not consumer.after_reset
    assert max(consumer.commits) == 5
    assert service.progress.results == 7, "no record after the error was accepted, and none twice"
    assert "partition 0 cannot be read at offset 2, retrying" in caplog.text


def test_an_error_before_any_record_seeks_to_the_start_offset_of_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("db_connector.kafka.reader._RETRY_S", 0.01)
    stop = threading.Event()
    service, consumer, _ = service_of(monkeypatch, stop, [[_Message(7, error=BAD), record(8)]])
    consumer.known = (7, OWN)
    consumer.after_reset = {7: [[record(7)], [_Message(8, b"no pair")], [record(9)]]}
    service.run()
    assert max(consumer.commits) == 8


def test_records_read_ahead_behind_an_error_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("db_connector.kafka.reader._RETRY_S", 0.0)
    stop = threading.Event()
    service, consumer, _ = service_of(monkeypatch, stop, [])
    consumer.after_reset = {2: [[record(2)], [_Message(3, b"no pair")], [record(4)]]}
    read: list[int] = []
    reader = service._reader  # noqa: SLF001 - the test sets the records read ahead
    sort = reader._sort  # noqa: SLF001 - as above

    def note(messages: list[Any]) -> Results:
        results = sort(messages)
        read.extend(message.offset() or 0 for message in results.messages)
        if not service.progress.results and read == [0, 1]:
            reader._read_ahead = [record(3)]  # type: ignore[list-item]  # noqa: SLF001 - as above
        return results

    monkeypatch.setattr(reader, "_sort", note)
    consumer._script = deque([[record(0), record(1), _Message(2, error=BAD)]])  # noqa: SLF001 - as above
    service.run()
    assert read == [0, 1, 2, 4]


def test_brokers_that_are_briefly_unavailable_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    away = _Message(-1, error=KafkaError(KafkaError._ALL_BROKERS_DOWN))  # noqa: SLF001 - its public name
    away.partition = lambda: None  # type: ignore[method-assign, return-value, assignment] # as the client reports it
    stop = threading.Event()
    script = [[record(0), away, record(1)], [_Message(2, b"no pair")], [record(3)]]
    service, consumer, _ = service_of(monkeypatch, stop, script)
    service.run()
    assert max(consumer.commits) == 2


def test_the_client_checks_the_sums_of_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    _, consumer, _ = service_of(monkeypatch, threading.Event(), [])
    assert consumer.config["check.crcs"] is True


@pytest.mark.parametrize(
    ("known", "begun", "said"),
    [
        ((5, OWN), 5, None),
        ((OFFSET_INVALID, ""), OFFSET_BEGINNING, None),
        ((5, ""), OFFSET_BEGINNING, "was set by hand"),
        ((5, "another tool's words"), OFFSET_BEGINNING, "was set by hand"),
        (
            (5, OWN.replace("joined", "other")),
            OFFSET_BEGINNING,
            "was committed by db_connector: other in -/lsb/autogen",
        ),
    ],
)
def test_only_an_offset_that_was_committed_for_this_target_is_believed(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    known: tuple[int, str],
    begun: int,
    said: str | None,
) -> None:
    stop = threading.Event()
    service, consumer, _ = service_of(monkeypatch, stop, [[record(5)], [_Message(6, b"no pair")], [record(7)]])
    consumer.known = known
    service.run()
    assert consumer.begun == [begun]
    warnings = [one.getMessage() for one in caplog.records if "it is ignored" in one.getMessage()]
    assert len(warnings) == (said is not None)
    assert all(str(said) in warning for warning in warnings)
    assert consumer.targets == {OWN}


def test_a_client_that_cannot_go_on_ends_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    service, _, _ = service_of(monkeypatch, threading.Event(), [[_Message(-1, error=fatal("no right to the group"))]])
    with pytest.raises(KafkaFailureError, match="no right to the group"):
        service.run()


def test_a_fenced_member_rejoins_once_and_then_reports_a_second_instance(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fenced = _Message(-1, error=fatal("Static consumer fenced by other consumer with same group.instance.id"))
    service, consumer, _ = service_of(monkeypatch, threading.Event(), [[fenced], [fenced]])
    with pytest.raises(KafkaFailureError, match="another process in group db_connector is running as instance"):
        service.run()
    assert [one.getMessage() for one in caplog.records].count("the group has fenced instance ''; rejoining") == 1
    assert consumer.begun == [0, 0]


def fatal(text: str) -> KafkaError:
    # The consumer reports a fatal error by its code; `fatal()` is not set.
    error = KafkaError(KafkaError._FATAL, text)  # noqa: SLF001 - its public name
    assert not error.fatal()
    return error


def test_a_journal_on_a_full_disk_ends_with_one_error_and_the_service_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Journal(Path("/dev/full")) as journal:
        for _ in range(3):
            journal.write(1, [(0, 1, 2)])
    assert [record.getMessage() for record in caplog.records] == [
        "the journal /dev/full ends here: No space left on device"
    ]
