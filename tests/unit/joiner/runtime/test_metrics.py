"""The metrics of the services match the data and docs/metrics.md. No port is opened."""

# ruff: noqa: SLF001 - the tests drive a process and its metrics step by step

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from broker.metrics import TelemetryServer
from broker.settings import MetricsSettings, MqttSettings
from connector.acknowledgement import Ledger
from connector.metrics import PublishTimes
from connector.metrics import register_metrics as register_connector_metrics
from connector.progress import Progress as ConnectorProgress
from connector.session import MqttSession
from connector.settings import ConnectorSettings
from control.api.metrics import Metrics
from db_connector.metrics import WriteTimes
from db_connector.metrics import register_metrics as register_db_connector_metrics
from db_connector.progress import Progress as DbProgress
from joiner.cli.merging.merger import MergeMetrics
from joiner.runtime.control import Assignment, Heartbeat
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import Aborted
from joiner.runtime.membership.gauges import expose_membership
from joiner.runtime.membership.state import SiteState
from joiner.runtime.model import AlignSummary, Checkpoint, JoinSummary
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.repartition.repartitioner import RepartitionMetrics
from joiner.runtime.runners.commit import write_commit
from joiner.runtime.task.append_times import STEPS_MAX, AppendTimes
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.unit import Unit
from joiner.runtime.telemetry.metrics import JoinerMetrics
from joiner.runtime.telemetry.unit_gauges import UnitStatus
from tests.manual_clock import ManualClock
from tests.unit.control.served import Served
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, DATA, POWER, batch, make_settings, message, record
from tests.unit.joiner.runtime.runner_parts import idle_loop
from tests.unit.project.documents import DOCS, rows

ON: Final = MetricsSettings.model_validate({"listen": 0})
S: Final = 1_000_000_000


class Transactions:
    """Accepts every commit, except that the next one raises ``fails`` if it is set."""

    has_pending_markers = False
    fails: Exception | None = None

    def commit(self, _messages: Any, _progress: Any, snapshot: Any) -> SnapshotPlace | None:
        fails, self.fails = self.fails, None
        if fails is not None:
            raise fails
        return snapshot[1] if snapshot else None

    def check_owner(self) -> None: ...


class Runner:
    """The metrics of a joiner, and the status of the units that it serves."""

    def __init__(self, *joins: dict[str, Any], **sections: Any) -> None:
        self.settings = make_settings(*joins, metrics={"listen": 0}, **sections)
        self.telemetry = TelemetryServer(self.settings.metrics)
        self.told: dict[int, UnitStatus] = {}
        self.clock = ManualClock()
        self.meters = JoinerMetrics(
            self.settings, Claimant("run", "one"), self.telemetry, lambda: self.told, lambda: {7}, self.clock
        )
        self.site = SiteState("process")
        expose_membership(self.telemetry.readings, lambda: self.site, lambda: {4: 0.25})
        self.transactions: Any = Transactions()

    def checkpoint(self, counts: dict[str, int], **joins: JoinSummary) -> Checkpoint:
        place = {DATA: 0}
        return Checkpoint(1, "app", 3, "run", "one", "process", place, place, {}, 5, "", {}, counts, joins)

    def commit(self, effects: Effects, counts: dict[str, int], snapshot: Any = None) -> None:
        messages = effects.messages(self.settings.topics)
        checkpoint = self.checkpoint(counts)
        write_commit(
            self.meters,
            self.clock,
            self.transactions,
            messages,
            effects.appended_ms,
            effects.watermarks,
            checkpoint,
            snapshot,
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.telemetry.registry.get_sample_value(f"lsb_joiner_{name}", labels)

    def counted(self, *names: str) -> list[float | None]:
        return [self.value(f"{name}_total", unit="3") for name in names]


BOUNDS = (("max", "foremost"), ("min", "hindmost"))
"""The values of the label `bound`, each with its value under the label's previous name, `thing`."""


def joined(settings: Any, offset: int = 0) -> tuple[Unit, Effects]:
    """Return a unit, and the effects of a batch: pairs, a dead letter, a late record, a duplicate, a watermark."""
    unit = Unit(settings, 0, {DATA: offset})
    sent = [
        record(0, "speed", BASE_MS, identity="a")._replace(append_ms=BASE_MS + 100),
        record(1, "speed", BASE_MS, identity="a")._replace(append_ms=BASE_MS + 150),
        record(2, "torque", BASE_MS + 5)._replace(append_ms=BASE_MS + 200),
        record(3, "speed", BASE_MS + 9)._replace(append_ms=BASE_MS + 300),
        record(4, "speed", BASE_MS + 2)._replace(append_ms=BASE_MS + 300),
        message(5, b"{")._replace(append_ms=BASE_MS + 300),
        message(6, {"mark": BASE_MS + 9, "quantity": "torque"})._replace(append_ms=BASE_MS + 400),
    ]
    return unit, unit.apply({DATA: batch(sent)}, {DATA: 7})


def test_a_batch_is_counted_when_it_is_committed_and_not_when_that_fails() -> None:
    runner = Runner()
    unit, effects = joined(runner.settings)
    names = ("records", "pairs", "late", "rejected", "duplicates", "watermarks")
    runner.transactions.fails = Aborted("no answer")
    with pytest.raises(Aborted):
        runner.commit(effects, dict(unit.counts))
    assert runner.counted(*names) == [None] * len(names)
    runner.commit(effects, dict(unit.counts))
    assert runner.counted(*names) == [7, 2, 1, 1, 1, 1]
    assert runner.value("transaction_duration_seconds_count") == 1
    assert runner.value("transaction_messages_sum") == len(effects.joined) + len(effects.late) + len(effects.rejected)


def test_aligned_rows_are_counted_by_themselves_and_have_a_latency() -> None:
    runner = Runner(align=[{"name": "table", "driver": "torque", "columns": {"speed": {}}}])
    unit, effects = joined(runner.settings)
    runner.commit(effects, dict(unit.counts))
    assert runner.counted("pairs", "rows", "late", "duplicates") == [2, 1, 2, 2]
    # From the append of the driver's record; the pairs' later records came at 200 and 300 ms.
    assert effects.appended_ms == {BASE_MS + 200: 2, BASE_MS + 300: 1}


def test_the_rows_of_a_grid_are_counted_and_have_no_latency() -> None:
    align = {"name": "table", "grid": {"every": "1ms"}, "columns": {"speed": {"lateness": "0"}}}
    runner = Runner(align=[align])
    unit, effects = joined(runner.settings)
    runner.commit(effects, dict(unit.counts))
    pairs, rows = runner.counted("pairs", "rows")
    assert rows == unit.counts["table:rows"] > 0
    assert sum(effects.appended_ms.values()) == pairs


def test_the_gauges_of_an_align_have_its_streams_as_sides() -> None:
    align = {"name": "table", "driver": "torque", "lateness": "2s", "columns": {"speed": {}}}
    runner = Runner(align=[align], application={"buffer_records_max": 100})
    held = AlignSummary({"driver": 20, "speed": 5}, 3, {"driver": (40 * S, 60 * S)})
    checkpoint = msgspec.structs.replace(runner.checkpoint({}), aligns={"table": held})
    runner.told = {3: UnitStatus(checkpoint, {"table": {"driver": 100, "speed": 400}}, {DATA}, 0, 0.0)}
    driver, speed = ({"unit": "3", "join": "table", "side": side} for side in ("driver", "speed"))
    assert [runner.value("held_records", **one) for one in (driver, speed)] == [20, 5]
    assert [runner.value("held_bytes", **one) for one in (driver, speed)] == [100, 400]
    assert runner.value("buffer_used_ratio", unit="3", join="table") == 0.25
    assert [runner.value("frontier_timestamp_seconds", **one) for one in (driver, speed)] == [60, None]
    assert runner.value("frontier_lag_seconds", **driver, bound="min", thing="hindmost") == 22


def test_each_of_the_results_in_a_message_is_counted() -> None:
    runner = Runner(application={"results": "arrow"})
    unit, effects = joined(runner.settings)
    runner.commit(effects, dict(unit.counts))
    assert (len(effects.joined), runner.counted("pairs")) == (1, [2])
    runner.commit(effects, {**unit.counts, "pairs": 9, "failed": 3})
    assert runner.counted("pairs") == [2 + 7 - 3]


def test_what_was_counted_before_the_unit_was_taken_is_not_counted_again() -> None:
    runner = Runner()
    runner.meters.claimed(runner.checkpoint({"records": 1000}), 0.3)
    runner.commit(Effects(), {"records": 1010}, (b"12345", SnapshotPlace(1, [1, 0])))
    runner.meters.fenced()
    assert runner.counted("records") == [10]
    assert runner.value("snapshot_bytes", unit="3") is None, "the unit is no longer served here"
    runner.told = {3: UnitStatus(runner.checkpoint({}), {}, set(), 0, 0.0)}
    assert runner.value("snapshot_bytes", unit="3") == 5
    assert runner.value("claims_total") == runner.value("fencings_total") == 1
    assert runner.value("recovery_duration_seconds_sum") == 0.3


def test_the_latency_begins_when_the_later_record_of_a_pair_is_appended() -> None:
    runner = Runner()
    unit, effects = joined(runner.settings)
    # (0, 2) and (2, 3): their later records were appended at +200 and at +300.
    assert effects.appended_ms == Counter({BASE_MS + 200: 1, BASE_MS + 300: 1})
    runner.clock.now_s = BASE_MS / 1000 + 0.7
    runner.commit(effects, dict(unit.counts))
    assert runner.value("output_latency_seconds_count") == 2
    assert runner.value("output_latency_seconds_sum") == pytest.approx(0.5 + 0.4)
    assert runner.value("output_latency_seconds_bucket", le="0.5") == 1 + (0.7 - 0.2 <= 0.5)


def test_without_metrics_nothing_is_kept_of_arrivals() -> None:
    assert joined(make_settings())[1].appended_ms == Counter()


def test_a_unit_that_was_rebuilt_knows_when_the_records_of_the_replay_came() -> None:
    settings = make_settings({**POWER, "lateness": "10ms"}, metrics={"listen": 0})
    unit = Unit(settings, 0, {DATA: 0})
    sent = [
        record(offset, quantity, BASE_MS + time_ms)._replace(append_ms=BASE_MS + time_ms + 5)
        for offset, (quantity, time_ms) in enumerate([("speed", 0), ("torque", 1), ("speed", 50), ("torque", 51)])
    ]
    unit.apply({DATA: batch(sent[:2])}, {DATA: 2}, silent=True)
    effects = unit.apply({DATA: batch(sent[2:])}, {DATA: 4})
    assert effects.appended_ms[BASE_MS + 6] == 1


def test_arrivals_are_those_of_the_offsets_and_the_oldest_are_forgotten() -> None:
    arrivals = AppendTimes()
    count = 5 * STEPS_MAX
    offsets, times = [3 * n for n in range(count)], [1000 + n // 2 for n in range(count)]
    for begin in range(0, count, 777):
        part = slice(begin, begin + 777)
        arrivals.add(Messages.of(offsets[part], times[part], [None] * len(offsets[part])))
    newest = np.array(offsets[-2 * STEPS_MAX :])
    assert arrivals.of(newest).tolist() == times[-2 * STEPS_MAX :]
    assert arrivals.of(newest + 1).tolist() == times[-2 * STEPS_MAX :]
    (oldest,) = arrivals.of(np.array([0])).tolist()
    assert times[0] < oldest <= times[-2 * STEPS_MAX]
    assert AppendTimes().of(np.array([5])).tolist() == [0]


def test_a_unit_tells_what_it_holds_where_its_frontiers_are_and_who_has_it() -> None:
    join = {"name": "power", "left": "speed", "right": "torque", "output": "p", "lateness": ["2s", 0]}
    runner = Runner(join, application={"buffer_records_max": 100, "buffer_bytes_max": 1000})
    held = JoinSummary(20, 5, 3, (40 * S, 60 * S), (10 * S, 50 * S))
    runner.told = {
        3: UnitStatus(runner.checkpoint({}, power=held), {"power": {"left": 100, "right": 400}}, {DATA}, 12, 1.5)
    }
    side = {"unit": "3", "join": "power", "side": "left"}
    other = side | {"side": "right"}
    assert [runner.value("held_records", **one) for one in (side, other)] == [20, 5]
    assert [runner.value("held_bytes", **one) for one in (side, other)] == [100, 400]
    assert runner.value("buffer_used_ratio", unit="3", join="power") == 0.5
    assert [runner.value("frontier_timestamp_seconds", **one) for one in (side, other)] == [60, 50]
    # The newest event time is 62 s: the left frontier, and its lateness.
    for one, lags in ((side, [2, 22]), (other, [12, 52])):
        found = [runner.value("frontier_lag_seconds", bound=now, thing=former, **one) for now, former in BOUNDS]
        assert found == lags
    assert runner.value("topic_paused", unit="3", topic=DATA) == 1
    assert runner.value("lag_records", unit="3") == 12
    assert runner.value("snapshot_age_seconds", unit="3") == 1.5
    assert runner.value("unit_owner", unit="3", owner="one", site="process", placement="process") == 1
    assert runner.value("failed_units") == runner.value("units_stuck") == 1


def test_a_side_of_which_nothing_came_has_no_frontier() -> None:
    runner = Runner()
    runner.told = {3: UnitStatus(runner.checkpoint({}, power=JoinSummary(1, 0, 1, (S, S), None)), {}, set(), 0, 0.0)}
    assert runner.value("frontier_timestamp_seconds", unit="3", join="power", side="left") == 1
    assert runner.value("frontier_timestamp_seconds", unit="3", join="power", side="right") is None


def test_a_joiner_is_ready_when_it_serves_each_unit_that_it_should_serve() -> None:
    loop: Any = idle_loop(make_settings(partitions=3))
    group, running = loop._membership, loop.tasks.tasks
    group.is_assigned = False
    assert loop.why_unready() == "the assignment of the units is not known yet"
    group.is_assigned = True
    assert loop.why_unready() == ""
    group.units = {0, 2}
    running[0] = None
    assert loop.why_unready() == "units [2] cannot be served: see the log"
    running[2] = None
    assert loop.why_unready() == ""


def test_members_assignments_wrong_suspicions_and_standbys_are_shown() -> None:
    runner = Runner(POWER)
    site = runner.site
    for name in ("one", "two"):
        site.apply(Heartbeat(site="process", instance=name, run=name), 1)
    site.apply(Assignment(site="process", epoch=3, units=[], gone={"two": 1}), 2)
    assert [runner.value(name) for name in ("members", "assignment_epoch", "wrong_suspicions_total")] == [1, 3, 0]
    site.apply(Heartbeat(site="process", instance="two", run="two"), 3)
    site.apply(Assignment(site="process", epoch=4, units=[], gone={"two": 1}), 4)
    assert [runner.value(name) for name in ("members", "assignment_epoch", "wrong_suspicions_total")] == [2, 3, 2]
    assert runner.value("standby_lag_seconds", unit="4") == 0.25


def connector() -> tuple[TelemetryServer, ConnectorProgress, Ledger]:
    telemetry, progress, ledger = TelemetryServer(ON), ConnectorProgress(), Ledger(messages_max=10, bytes_max=1000)
    messages: Any = SimpleNamespace(gaps=3, rebirths=4)
    register_connector_metrics(telemetry, progress, ledger, MqttSession(MqttSettings(), ConnectorSettings()), messages)
    return telemetry, progress, ledger


def test_the_connector_tells_what_it_took_what_it_sent_and_what_is_under_way() -> None:
    telemetry, progress, ledger = connector()
    progress.count(5, 8, 2)
    ledger.add(1, 30, 2)
    ledger.add(2, 40, 1)
    progress.skipped["no_number"] += 6
    names = ("events_total", "records_total", "rejected_total", "unacknowledged_events", "unacknowledged_bytes")
    more = ("mqtt_connected", "sequence_gaps_total", "rebirths_total")
    found = [telemetry.registry.get_sample_value(f"lsb_connector_{name}") for name in (*names, *more)]
    assert found == [5, 8, 2, 2, 70, 0, 3, 4]
    reasons = ("retained", "no_number", "empty")
    skipped = [telemetry.registry.get_sample_value("lsb_connector_skipped_total", {"reason": one}) for one in reasons]
    assert skipped == [0, 6, 0]
    assert telemetry.unready() == "there is no connection to MQTT at 127.0.0.1:1883"


def test_how_long_events_take_is_told_of_each_though_nothing_is_kept_of_each() -> None:
    telemetry, now_s = TelemetryServer(ON), [0.0]
    times = PublishTimes(telemetry, lambda: now_s[0])
    times.began(3)
    now_s[0] = 1.0
    times.began(2)
    now_s[0] = 1.5
    times.ended(1)
    now_s[0] = 2.0
    times.ended(3)
    times.ended(0)
    name = "lsb_connector_publish_duration_seconds"
    assert telemetry.registry.get_sample_value(f"{name}_count") == 4
    assert telemetry.registry.get_sample_value(f"{name}_sum") == 1.5 + 2 * 2.0 + 1.0
    assert telemetry.registry.get_sample_value(f"{name}_bucket", {"le": "1.0"}) == 1


def registries() -> list[CollectorRegistry]:
    """Return the registries of all services, with a value for each metric."""
    runner = Runner()
    runner.told = {3: UnitStatus(runner.checkpoint({}, power=JoinSummary(1, 1, 1, (S, S), (S, S))), {}, set(), 0, 0.0)}
    runner.commit(Effects(), {"power:failed": 1}, (b"1", SnapshotPlace(1, [1, 0])))
    bridge, _, _ = connector()
    PublishTimes(bridge)
    database = TelemetryServer(ON)
    WriteTimes(database)
    thread: Any = SimpleNamespace(in_flight=0, writer=SimpleNamespace(failures=0, is_unavailable=False))
    register_db_connector_metrics(database, DbProgress(), thread, lambda: {0: 5}, lambda: {1: 7})
    control = Metrics(Served().watchers)
    copying = TelemetryServer(ON)
    copied = RepartitionMetrics(copying.readings)
    copied.copied["plant",] = copied.refused["plant",] = 1
    copied.lags = {("plant",): 2.0}
    merging = TelemetryServer(ON)
    merged = MergeMetrics(merging.readings)
    merged.verdicts, merged.complete = {("out", "1", "known"): 3.0}, {("out", "1"): 2.0}
    merged.partitions, merged.remembered = {("out",): 2.0}, {("out",): 5.0}
    merged.leads, merged.lead_ms = {("out", "1"): 2.0}, {("out", "1"): 80.0}
    return [one.registry for one in (runner.telemetry, bridge, database, control, copying, merging)]


def test_every_metric_is_documented_with_its_type_and_labels_and_no_other() -> None:
    told = {
        row.cells[0].strip("`"): (row.cells[1], {label.strip("` ") for label in row.cells[2].split(",")} - {""})
        for row in rows(DOCS / "metrics.md")
        if row.title == "metric"
    }
    real = {
        family.name + "_total" * (family.type == "counter"): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for registry in registries()
        for family in registry.collect()
        if not family.name.startswith("process_")
    }
    assert told == real
    assert all(family.samples for registry in registries() for family in registry.collect())


def test_the_names_follow_the_conventions() -> None:
    for registry in registries():
        for family in registry.collect():
            if family.name.startswith("process_"):
                continue
            assert family.name.startswith("lsb_")
            assert family.documentation.endswith(".")
            if family.type == "histogram":
                assert family.name.endswith(("_seconds", "_messages"))
