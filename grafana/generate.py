"""Writes the dashboards as JSON for Grafana: ``python -m grafana.generate`` (or ``make dashboards``).

Edit this file, not its output. Panels refer to their data source by the uid defined in ``grafana/provisioning``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, TypeAlias

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import DataSourceRef, DynamicConfigValue, VariableOption, VariableRefresh

FOLDER: Final = Path(__file__).parent / "dashboards"
BUCKET: Final = "lsb"
MEASUREMENT: Final = "joined"
TABLE_ROWS: Final = 200

_PROMETHEUS: Final = DataSourceRef(type_val="prometheus", uid="prometheus")
_INFLUXDB: Final = DataSourceRef(type_val="influxdb", uid="influxdb")
_WHOLE, _HALF, _THIRD, _SIXTH = 24, 12, 8, 4
_TALL, _LOW = 9, 4

_Panel: TypeAlias = "timeseries.Panel | stat.Panel | table.Panel"


class _Flux(Dataquery, Builder[Dataquery]):
    """A Flux query for InfluxDB, for which grafana-foundation-sdk has no builder."""

    def __init__(self, query: str) -> None:
        self._query = query

    def build(self) -> Dataquery:
        """Return the query itself."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the query as the JSON object that Grafana's InfluxDB data source expects."""
        return {"refId": "A", "datasource": _INFLUXDB.to_json(), "query": self._query}


def _points(quantities: str) -> str:
    """Return the start of a query for a machine's points. ``quantities``: the Flux condition on the tag ``quantity``.

    The query skips points without a ``join`` tag, which release 0.1.0 wrote.
    """
    return (
        f'from(bucket: "{BUCKET}")\n'
        "  |> range(start: v.timeRangeStart, stop: v.timeRangeStop)\n"
        f'  |> filter(fn: (r) => r._measurement == "{MEASUREMENT}" and r.thing == "${{thing}}" and exists r.join)\n'
        f"  |> filter(fn: (r) => r.quantity {quantities})\n"
    )


def _thinned() -> str:
    """Return the query that reduces the points of each join and field to the mean, minimum and maximum per interval.

    Points are grouped by join and field alone, so points that also have the tag ``tie`` or ``half`` are on the same
    line.
    """
    kinds = (("mean", "mean"), ("lowest", "min"), ("highest", "max"))
    thinned = ",\n".join(
        f"  points |> aggregateWindow(every: v.windowPeriod, fn: {function}, createEmpty: false)"
        f' |> map(fn: (r) => ({{_time: r._time, _value: r._value, _field: r.join + " " + r._field + " {name}"}}))'
        for name, function in kinds
    )
    return (
        "points = " + _points('== "${quantity}"') + '  |> group(columns: ["join", "_field"])\n'
        f"union(tables: [\n{thinned},\n])\n"
        '  |> group(columns: ["_field"])\n'
        '  |> sort(columns: ["_time"])'
    )


def _aligned() -> str:
    """Return the query for a machine's aligned rows: the last value of each field per interval, not a mean of several.

    Rows are in the same measurement as the pairs, and are distinguished by their quantity, which is the name of the
    align.
    """
    return (
        _points("== r.join")
        + '  |> group(columns: ["join", "_field"])\n'
        + "  |> aggregateWindow(every: v.windowPeriod, fn: last, createEmpty: false)\n"
        + '  |> map(fn: (r) => ({_time: r._time, _value: r._value, _field: r.join + " " + r._field}))\n'
        + '  |> group(columns: ["_field"])\n'
        + '  |> sort(columns: ["_time"])'
    )


def _newest() -> str:
    """Return the query for a table of the newest pairs, with one row per pair and one column per field and tag."""
    return _points("=~ /^${quantity:regex}$/") + (
        f"  |> tail(n: {TABLE_ROWS})\n"
        '  |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")\n'
        "  |> group()\n"
        '  |> sort(columns: ["_time"], desc: true)\n'
        f"  |> limit(n: {TABLE_ROWS})\n"
        '  |> drop(columns: ["_start", "_stop", "_measurement", "thing"])'
    )


def _lines(title: str, what: str, unit: str, *queries: tuple[str, str], width: int = _HALF) -> timeseries.Panel:
    """Return a time series panel for Prometheus data. Each of ``queries`` is a PromQL expression and its legend."""
    panel = timeseries.Panel().title(title).description(what).datasource(_PROMETHEUS)
    panel = panel.unit(unit).min(0).span(width).height(_TALL).fill_opacity(8).line_width(1.5)
    panel = panel.show_points(common.VisibilityMode.NEVER)
    for number, (expression, legend) in enumerate(queries):
        panel = panel.with_target(_prometheus_query(expression, legend, number))
    return panel


def _prometheus_query(expression: str, legend: str, number: int = 0) -> prometheus.Dataquery:
    query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number))
    return query.datasource(_PROMETHEUS).range()


def _number(title: str, what: str, unit: str, expression: str) -> stat.Panel:
    panel = stat.Panel().title(title).description(what).datasource(_PROMETHEUS).unit(unit)
    return panel.span(_SIXTH).height(_LOW).with_target(_prometheus_query(expression, title))


def _points_panel(title: str, what: str, query: str) -> timeseries.Panel:
    panel = timeseries.Panel().title(title).description(what).datasource(_INFLUXDB)
    panel = panel.span(_WHOLE).height(_TALL).line_width(1).fill_opacity(0).show_points(common.VisibilityMode.AUTO)
    dotted = DynamicConfigValue("custom.lineStyle", {"fill": "dot", "dash": [1, 4]})
    return panel.override_by_regexp("/ (lowest|highest)$/", [dotted]).with_target(_Flux(query))


def _aligned_panel() -> timeseries.Panel:
    panel = timeseries.Panel().title("Aligned rows").datasource(_INFLUXDB)
    panel = panel.description(
        "The lines are the columns. The dots, on the right axis, are the results of the rows; with a driver, these are "
        "the values of its records. Each interval shows its last row."
    )
    panel = panel.span(_WHOLE).height(_TALL).line_width(1).fill_opacity(0).show_points(common.VisibilityMode.NEVER)
    dots = [
        DynamicConfigValue("custom.drawStyle", "points"),
        DynamicConfigValue("custom.showPoints", "always"),
        DynamicConfigValue("custom.pointSize", 4),
        DynamicConfigValue("custom.axisPlacement", "right"),
    ]
    return panel.override_by_regexp("/ result$/", dots).with_target(_Flux(_aligned()))


def _variable(name: str, label: str, tag: str, where: str = "") -> dashboard.QueryVariable:
    """Return a dashboard variable that lists the values of ``tag`` in the selected time range.

    ``where``: an additional Flux condition. The query does the same as InfluxDB's `tagValues` function.
    """
    query = (
        f'from(bucket: "{BUCKET}")\n'
        "  |> range(start: v.timeRangeStart, stop: v.timeRangeStop)\n"
        f'  |> filter(fn: (r) => r._measurement == "{MEASUREMENT}"{where})\n'
        f'  |> keep(columns: ["{tag}"])\n  |> group()\n  |> distinct(column: "{tag}")'
    )
    variable = dashboard.QueryVariable(name).label(label).datasource(_INFLUXDB)
    return variable.query({"query": query, "refId": name}).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)


def _new_dashboard(title: str, uid: str, what: str) -> dashboard.Dashboard:
    board = dashboard.Dashboard(title).uid(uid).description(what).tags(["localstreambuffer"]).readonly()
    return board.refresh("5s").time("now-15m", "now").timezone("browser").version(1)


def machine_data() -> dashboard.Dashboard:
    """Return the dashboard for a machine's pairs and aligned rows, with one panel per quantity."""
    board = _new_dashboard("Machine data", "lsb-machine", "Join results: one panel for each quantity of a machine.")
    board = board.with_variable(_variable("thing", "Machine", "thing"))
    quantities = _variable("quantity", "Quantity", "quantity", ' and r.thing == "${thing}"')
    quantities = quantities.multi(True).include_all(True)  # noqa: FBT003 - the library's signature
    board = board.with_variable(quantities.current(VariableOption(text=["All"], value=["$__all"])))
    panel = _points_panel(
        "$quantity",
        "Mean, minimum and maximum per interval. When zoomed in, each point is one pair.",
        _thinned(),
    )
    pairs = table.Panel().title("Pairs").description(f"The newest {TABLE_ROWS} pairs, with their join.")
    pairs = pairs.datasource(_INFLUXDB).span(_WHOLE).height(_TALL).with_target(_Flux(_newest()))
    board = board.with_panel(panel.repeat("quantity").repeat_direction("v"))
    return board.with_panel(_aligned_panel()).with_panel(pairs)


def join_operation() -> dashboard.Dashboard:
    """Return the dashboard for the health and progress of the joins."""
    board = _new_dashboard("Join operation", "lsb-join", "Throughput, latency, lag, frontiers, buffers, owners.")
    for panel in (*_at_a_glance(), *_flow(), *_state(), *_ends()):
        board = board.with_panel(panel)
    return board


def _at_a_glance() -> list[_Panel]:
    return [
        _number("Units served", "Units with an owner.", "none", "count(max by (unit) (lsb_joiner_unit_owner))"),
        _number("Records in", "All units.", "cps", "sum(rate(lsb_joiner_records_total[1m]))"),
        _number("Pairs out", "All units.", "cps", "sum(rate(lsb_joiner_pairs_total[1m]))"),
        _number("Lag", "Input records not joined yet.", "short", "sum(lsb_joiner_lag_records)"),
        _number("Records held", "Records that may still get a neighbour.", "short", "sum(lsb_joiner_held_records)"),
        _number("Dead letters, 5 min", "All services.", "short", f"sum({_rejected('increase', '5m')})"),
    ]


def _flow() -> list[_Panel]:
    latency = "histogram_quantile({share}, sum by (le) (rate(lsb_joiner_output_latency_seconds_bucket[1m])))"
    duration = "histogram_quantile({share}, sum by (le) (rate(lsb_joiner_transaction_duration_seconds_bucket[1m])))"
    publishing = "histogram_quantile(0.99, sum by (le) (rate(lsb_connector_publish_duration_seconds_bucket[1m])))"
    writing = "histogram_quantile(0.99, sum by (le) (rate(lsb_db_connector_write_duration_seconds_bucket[1m])))"
    shares = (0.5, 0.99, 0.999)
    return [
        _lines(
            "Throughput", "Of each part of the pipeline.", "cps",
            ("sum(rate(lsb_connector_records_total[1m]))", "connector: records"),
            ("sum(rate(lsb_joiner_records_total[1m]))", "joiner: records in"),
            ("sum(rate(lsb_joiner_pairs_total[1m]))", "joiner: pairs out"),
            ("sum(rate(lsb_db_connector_points_total[1m]))", "database: points"),
        ),
        _lines(
            "Join latency", "Time from a pair's later record to its result.", "s",
            *((latency.format(share=share), f"p{share * 100:g}") for share in shares),
        ),
        _lines(
            "Transactions", "Time from start to commit.", "s",
            *((duration.format(share=share), f"p{share * 100:g}") for share in shares), width=_THIRD,
        ),
        _lines("Connector latency", "Until Kafka has all records of an event.", "s", (publishing, "p99"), width=_THIRD),
        _lines("Database latency", "Until each point is acknowledged or refused.", "s", (writing, "p99"), width=_THIRD),
        _lines(
            "Late, rejected, unmatched, duplicates", "Records that are not joined.", "cps",
            ("sum(rate(lsb_joiner_late_total[1m]))", "late"),
            (f"sum({_rejected('rate', '1m')})", "rejected"),
            ("sum(rate(lsb_joiner_function_failures_total[1m]))", "rejected because the joining function failed"),
            ("sum(rate(lsb_joiner_unmatched_total[1m]))", "unmatched"),
            ("sum(rate(lsb_joiner_duplicates_total[1m]))", "duplicates"),
        ),
        _lines(
            "Lag", "Input records not joined yet, and results not in the database yet.", "short",
            ("sum by (unit) (lsb_joiner_lag_records)", "unit {{unit}}"),
            ("sum(lsb_db_connector_lag_records)", "database"),
        ),
    ]  # fmt: skip


def _rejected(function: str, span: str) -> str:
    names = ("lsb_connector_rejected_total", "lsb_joiner_rejected_total", "lsb_db_connector_rejected_total")
    return " or ".join(f"{function}({name}[{span}])" for name in names)


def _state() -> list[_Panel]:
    side = "{{join}} {{side}}"
    return [
        _lines(
            "Frontiers behind the newest event",
            "How far each side is behind, in event time. A line that keeps rising means that its side is silent.", "s",
            ('max by (join, side) (lsb_joiner_frontier_lag_seconds{bound="max"})', side),
        ),
        _lines(
            "Records held", "By side, all units.", "short",
            ("sum by (join, side) (lsb_joiner_held_records)", side),
        ),
        _lines(
            "Buffers", "A unit stops at 100%.", "percentunit",
            ("max by (join, unit) (lsb_joiner_buffer_used_ratio)", "{{join}}, unit {{unit}}"), width=_THIRD,
        ),
        _lines(
            "Memory of held records", "Approximate.", "bytes",
            ("sum by (join, side) (lsb_joiner_held_bytes)", side), width=_THIRD,
        ),
        _lines(
            "Paused topics", "1 while the topic is paused so that the other side can catch up.", "none",
            ("max by (unit, topic) (lsb_joiner_topic_paused)", "{{topic}}, unit {{unit}}"), width=_THIRD,
        ),
    ]  # fmt: skip


def _ends() -> list[_Panel]:
    return [
        _lines(
            "Owners", "Units by process.", "none",
            ("count by (owner, site) (lsb_joiner_unit_owner)", "{{owner}} ({{site}})"), width=_THIRD,
        ),
        _lines(
            "Claims and fencings", "Starts, rebalances, moves, failures.", "short",
            ("sum(increase(lsb_joiner_claims_total[5m]))", "claims"),
            ("sum(increase(lsb_joiner_fencings_total[5m]))", "fencings"), width=_THIRD,
        ),
        _lines(
            "Snapshots", "Age of each unit's last snapshot; 0 if nothing has changed since.", "s",
            ("max by (unit) (lsb_joiner_snapshot_age_seconds)", "unit {{unit}}"), width=_THIRD,
        ),
        _lines(
            "Connections", "1: connected, or ready.", "none",
            ("max(lsb_connector_mqtt_connected)", "connector to MQTT"),
            ("min(lsb_db_connector_database_up)", "db_connector to the database"),
            ("min by (job) (lsb_ready)", "{{job}} is ready"), width=_THIRD,
        ),
        _lines(
            "Not acknowledged to MQTT", "Events received that Kafka does not have yet.", "short",
            ("sum(lsb_connector_unacknowledged_events)", "events"), width=_THIRD,
        ),
        _lines(
            "Memory", "By service.", "bytes",
            ('sum by (job) (process_resident_memory_bytes{job=~"connector|joiner|db_connector"})', "{{job}}"),
            width=_THIRD,
        ),
    ]  # fmt: skip


def replicas() -> dashboard.Dashboard:
    """Return the dashboard for the processes that merge the replicas of an application."""
    board = _new_dashboard("Replicas", "lsb-replicas", "Which replica is first, and whether each could go on alone.")
    delivered = 'sum by (replica) (rate(lsb_joiner_merge_messages_total{verdict="deliver"}[1m]))'
    # A process that has just begun to merge may be scraped before the one that merged until then has ended.
    partitions = "max by (topic) (lsb_joiner_merge_partitions)"
    complete = "max by (topic, replica) (lsb_joiner_merge_complete)"
    remembered = "max by (topic) (lsb_joiner_merge_remembered)"
    share = f"{delivered} / on () group_left () sum({delivered})"
    panels: list[_Panel] = [
        _number("Merging", "Processes that merge. There should be one.", "none", "sum(lsb_joiner_merge_active)"),
        _number("Waiting", "Processes that wait for their turn.", "none", "sum(lsb_joiner_merge_active == bool 0)"),
        _number(
            "Complete replicas", "In all partitions, of the topic with the fewest. If two run, any may die.", "none",
            f"min(sum by (topic) ({complete} == bool on (topic) group_left () {partitions}))",
        ),
        _number(
            "Partitions waiting", "Not read, because a complete replica is waited for.", "none",
            "max(lsb_joiner_merge_waiting)",
        ),
        _number("Ids remembered", "Replicas may still write them.", "short", f"sum({remembered})"),
        _number("Errors, 5 min", "Merging started over.", "short", "sum(increase(lsb_joiner_merge_errors_total[5m]))"),
        _lines(
            "Read", "Messages of each replica. One of which there are none while there are of others is down.", "cps",
            ("sum by (replica) (rate(lsb_joiner_merge_messages_total[1m]))", "replica {{replica}}"), width=_THIRD,
        ),
        _lines(
            "First", "Messages delivered from each replica, because it was first.", "cps",
            (delivered, "replica {{replica}}"), width=_THIRD,
        ),
        _lines("Share", "Of the messages delivered.", "percentunit", (share, "replica {{replica}}"), width=_THIRD),
        _lines(
            "Complete", "Partitions of all output topics in which a replica could go on alone.", "none",
            (f"sum by (replica) ({complete})", "replica {{replica}}"), width=_THIRD,
        ),
        _lines(
            "Ignored", "Messages dropped because their replica is not accepted.", "cps",
            (
                'sum by (replica) (rate(lsb_joiner_merge_messages_total{verdict="ignored"}[1m]))',
                "replica {{replica}}",
            ), width=_THIRD,
        ),
        _lines(
            "Remembered", "Ids, by topic.", "short",
            (remembered, "{{topic}}"), width=_THIRD,
        ),
    ]  # fmt: skip
    for panel in panels:
        board = board.with_panel(panel)
    return board


DASHBOARDS: Final = {"machine_data": machine_data, "join_operation": join_operation, "replicas": replicas}


def rendered(name: str) -> str:
    """Return the JSON of a dashboard, with sorted keys for readable diffs."""
    return json.dumps(DASHBOARDS[name]().build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Write all dashboards and return the exit status."""
    FOLDER.mkdir(exist_ok=True)
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(rendered(name), encoding="utf-8")
        print(f"grafana/dashboards/{name}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
