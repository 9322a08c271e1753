"""Does the control service show what is held for each thing, what it waits for, and the pairs of one thing?"""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, expect

from broker.times import UNIT_NS
from broker.wire.records import Record, decode_data, decode_joined
from control.facts.lookup.keys import TOO_LATE, KeysRead, read_keys
from control.facts.lookup.one_at_a_time import Deadline
from joiner.check.model import oracle
from joiner.core.frontier import NEVER
from joiner.runtime.clock import SystemClock
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.unit import Unit
from tests.integration.browser import SCREENS, SEEN_MS, Visitor, needs_browser
from tests.integration.control_service import ControlService, control_service
from tests.integration.joiner_application import (
    ALIGNS,
    BASE_MS,
    PARTITIONS,
    Application,
    Entry,
    application,
    record,
    run_once,
    seeded_entries,
    things_over_all_units,
)
from tests.integration.services import read_topic, wait_until
from tests.integration.test_batches import in_batches

ALL: Final = 1_000
RENEWED_MS: Final = 100_000
"""How long to wait until the page shows what is new. On a busy machine, the reading in progress may take 20 s, and its
result is kept for four times as long, up to 30 s. After that, those of the keys and the records may take 20 s each."""
SET_VISIBILITY: Final = """state => {
  Object.defineProperty(document, "visibilityState", {value: state, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""
MS: Final = UNIT_NS["ms"]


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def inputs(app: Application) -> dict[int, list[bytes]]:
    """Return the values of the input by unit. Its producer uses no transactions, so the index is the offset."""
    found: dict[int, list[bytes]] = {unit: [] for unit in range(PARTITIONS)}
    for stored in read_topic(app.bootstrap, app.topic("data"), PARTITIONS):
        found[stored.partition].append(stored.value)
    return found


def reference(app: Application, values: Sequence[bytes], unit: int) -> Unit:
    """Return a unit that has consumed these messages at once, without Kafka and without a snapshot."""
    made = Unit(app.settings(), unit, {app.topic("data"): 0})
    count = len(values)
    given = Messages.of(range(count), [BASE_MS + 86_400_000] * count, values)
    made.apply({app.topic("data"): given}, {app.topic("data"): count}, silent=True)
    return made


def frontiers_by_definition(app: Application, values: Sequence[bytes]) -> dict[tuple[str, str, str], int | None]:
    """Return the frontiers in ns by join, side and thing, as the definition of the join has them."""
    things: dict[str, int] = {}
    entries: dict[str, list[oracle.Rec | oracle.Watermark]] = {}
    for offset, value in enumerate(values):
        content, ts_ns = decode_data(value, "ms")
        key = oracle.ALL_KEYS if content.thing is None else things.setdefault(content.thing, len(things))
        entries.setdefault(str(content.quantity), []).append(
            oracle.Rec(key, ts_ns, offset, content.id)
            if isinstance(content, Record)
            else oracle.Watermark(key, ts_ns, offset)
        )
    found = {}
    for join in app.settings().join:
        for side, stream in join.streams.items():
            read = oracle.Stream(entries.get(str(stream.quantity), []), join.lateness_by_stream[side])
            for thing, key in things.items():
                at = read.frontier(key)
                found[join.name, side, thing] = None if at == oracle.NOTHING_YET else at
    return found


def test_what_is_held_is_what_a_reference_holds_at_the_same_offsets(app: Application, tmp_path: Path) -> None:
    app.aligns = ALIGNS
    run_once(app, 101, 900)
    given = inputs(app)
    with control_service(app.config, tmp_path) as control:
        shown = control.get(f"applications/{app.name}/keys?limit={ALL}")
    assert [one["trouble"] for one in shown["units"]] == [""] * PARTITIONS
    checkpoints = app.checkpoints()
    for one in shown["units"]:
        assert one["as_of"]["source"] == "checkpoint"
        assert one["as_of"]["offsets"] == checkpoints[one["unit"]].offsets
        assert one["as_of"]["offsets"] == {app.topic("data"): len(given[one["unit"]])}
    keys = {(key["unit"], key["operator"], key["thing"]): key for key in shown["keys"]}
    assert len(keys) == len(shown["keys"]) == shown["found"] > 15
    assert [key["held"] for key in shown["keys"]] == sorted((key["held"] for key in shown["keys"]), reverse=True)
    expected: dict[tuple[int, str, str], Any] = {}
    joins = app.settings().join
    quantities = {(join.name, side): stream.quantity for join in joins for side, stream in join.streams.items()}
    for unit, values in given.items():
        for name, held in reference(app, values, unit).held_by_key().items():
            for at, thing in enumerate(held.things):
                streams = {
                    stream: {
                        "name": quantities.get((name, stream), stream),
                        "held": int(of_stream[at]),
                        "frontier_ns": None if (ns := int(held.frontier_ns[stream][at])) == NEVER else ns,
                    }
                    for stream, of_stream in held.held.items()
                }
                if any(one["held"] or one["frontier_ns"] is not None for one in streams.values()):
                    expected[unit, name, thing] = streams
        for (name, side, thing), frontier_ns in frontiers_by_definition(app, values).items():
            if (unit, name, thing) in keys:
                assert keys[unit, name, thing]["streams"][side]["frontier_ns"] == frontier_ns
    assert {place: key["streams"] for place, key in keys.items()} == expected


def test_the_stream_that_has_stopped_is_found(app: Application, tmp_path: Path) -> None:
    stopped, never, healthy, *_ = things_over_all_units(3)
    entries = []
    for at in range(200):
        for thing in (stopped, never, healthy):
            entries.append(record(thing, "speed", BASE_MS + 10 * at, 1.0, f"s{at}"))
            if thing == healthy or (thing == stopped and at < 20):
                entries.append(record(thing, "torque", BASE_MS + 10 * at + 5, 1.0, f"t{at}"))
    app.create_topics()
    app.produce(entries)
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    with control_service(app.config, tmp_path) as control:
        found = control.get(f"applications/{app.name}/keys?operator=power")
        (only,) = control.get(f"applications/{app.name}/keys?operator=power&thing={stopped}&unit=0")["keys"]
    keys = {key["thing"]: key for key in found["keys"]}
    assert [key["thing"] for key in found["keys"]] == [never, stopped, healthy]
    assert only == keys[stopped]
    # The latest speed is at 1,990 ms, and the last torque was at 195 ms.
    assert keys[stopped]["waits_for"] == [{"stream": "right", "name": "torque", "behind_ns": 1_795 * MS}]
    assert keys[never]["waits_for"] == [{"stream": "right", "name": "torque", "behind_ns": None}]
    assert keys[never]["streams"] == {
        "left": {"name": "speed", "held": 200, "frontier_ns": (BASE_MS + 1_990) * MS},
        "right": {"name": "torque", "held": 0, "frontier_ns": None},
    }
    assert [one["stream"] for one in keys[healthy]["waits_for"]] == ["left"]
    assert keys[healthy]["held"] < 5


def test_a_state_that_takes_too_long_or_is_too_large_is_shown_as_far_as_possible(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.application = 'snapshot_interval = "60s"\nsnapshot_records = 100'
    app.create_topics()
    app.produce(seeded_entries(102, 900))
    joiner = app.start()
    app.wait_until_through()
    # Too few for the next snapshot. The joiner is killed, because it writes one at its end.
    app.produce(seeded_entries(107, 60))
    app.wait_until_through()
    joiner.kill()
    clock, settings = SystemClock(), app.settings()

    def read(seconds: float = 60.0) -> KeysRead:
        deadline = Deadline(clock, clock.monotonic_s() + seconds, Event())
        return read_keys(settings, clock, range(PARTITIONS), "", deadline)

    whole = read()
    assert {one.as_of.source for one in whole.units if one.as_of} == {"checkpoint"}
    late = read(0.0)
    assert (late.keys, {one.trouble for one in late.units}) == ([], {TOO_LATE})
    monkeypatch.setattr("control.facts.lookup.unit_state.REPLAYED_MAX", 0)
    older = read()
    snapshots = [one.as_of for one in older.units if one.as_of and one.as_of.source == "snapshot"]
    assert snapshots
    checkpoints = app.checkpoints()
    for one in older.units:
        assert one.as_of is not None
        if one.as_of.source == "snapshot":
            assert "too many to replay" in one.as_of.why
            assert all(at <= checkpoints[one.unit].offsets[topic] for topic, at in one.as_of.offsets.items())
            values = inputs(app)[one.unit][: one.as_of.offsets[app.topic("data")]]
            held = reference(app, values, one.unit).held()
            assert sum(key.held for key in older.keys if key.unit == one.unit) == held
    monkeypatch.setattr("control.facts.lookup.unit_state.STATE_BYTES_MAX", 100)
    assert all("too much to read here" in one.trouble for one in read().units)


def test_an_application_that_runs_with_other_settings_is_not_misread(app: Application, tmp_path: Path) -> None:
    with control_service(app.config, tmp_path, "before") as service:
        shown = service.get(f"applications/{app.name}/keys")
        assert (shown["keys"], {one["trouble"] for one in shown["units"]}) == ([], {""})
        with pytest.raises(urllib.error.HTTPError) as refused:
            service.get(f"applications/{app.name}/joins/power/records?thing=R1", at_once=True)
        assert refused.value.code == 503
        assert "does not exist yet" in json.load(refused.value)["detail"]
    run_once(app, 103, 100)
    app.tolerance = "2s"
    with control_service(app.config, tmp_path, "after") as service:
        shown = service.get(f"applications/{app.name}/keys")
        assert all("start the service with the joiner's settings file" in one["trouble"] for one in shown["units"])
        assert all("joins.gap.tolerance_ns is 500000000 there" in one["trouble"] for one in shown["units"])


@pytest.mark.parametrize("many", [False, True], ids=["json", "arrow"])
def test_the_records_and_pairs_of_a_thing_are_those_in_the_topics(
    app: Application, tmp_path: Path, *, many: bool
) -> None:
    if many:
        app.data_format = "arrow"
        app.application += '\nresults = "arrow"'
    entries = seeded_entries(104, 1_500)
    app.create_topics()
    app.produce(in_batches(app, entries, 4) if many else entries)
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    app.verify()
    thing, limit = things_over_all_units(7)[0], 40
    with control_service(app.config, tmp_path) as control:
        shown = records_with_frontiers(control, app.name, "gap", thing, limit)
    assert (shown["join"], shown["thing"], shown["unit"]) == ("gap", thing, app.unit_of(thing))
    assert shown["as_of"]["offsets"] == app.checkpoints()[shown["unit"]].offsets
    expected = records_of(entries, thing)
    for side, quantity in (("left", "command"), ("right", "speed")):
        stream = shown[side]
        assert (stream["name"], stream["topic"]) == (quantity, app.topic("data"))
        assert [(one["time_ns"], one["value"]) for one in stream["records"]] == expected[quantity][-limit:]
        assert all(one["is_consumed"] for one in stream["records"])
        assert not stream["searched"]["is_cut"]
    positions = {side: {one["position"] for one in shown[side]["records"]} for side in ("left", "right")}
    if not many:
        written = results_of(app, "gap", thing, shown["unit"])
        wanted = {(left, right): value for (left, right), value in written.items() if _is_near(left, right, positions)}
        assert {(pair["left"], pair["right"]): pair["result"] for pair in shown["pairs"]} == wanted
    values = {side: {one["position"]: one["value"] for one in shown[side]["records"]} for side in positions}
    both = [pair for pair in shown["pairs"] if _is_in(pair, positions)]
    assert len(both) > 5
    for pair in both:
        assert pair["result"] == pytest.approx(values["left"][pair["left"]] - values["right"][pair["right"]])
    assert shown["frontiers"]["left_ns"] is not None


def records_with_frontiers(control: ControlService, app: str, join: str, thing: str, limit: int) -> dict[str, Any]:
    """Return the records of a thing together with its frontiers, known for seconds after a look at the keys."""
    shown: dict[str, Any] = {}

    def are_known() -> bool:
        control.get(f"applications/{app}/keys")
        shown.update(control.get(f"applications/{app}/joins/{join}/records?thing={thing}&limit={limit}"))
        return shown["frontiers"] is not None

    wait_until(are_known, f"the frontiers of {thing} are known")
    return shown


def records_of(entries: Sequence[Entry], thing: str) -> dict[str, list[tuple[int, float]]]:
    """Return the times in ns and the values of a thing's records by quantity, in the order in which they were sent."""
    found: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        content, ts_ns = decode_data(entry.value, "ms")
        if isinstance(content, Record) and content.thing == thing:
            found.setdefault(content.quantity, []).append((ts_ns, content.result))
    return found


def results_of(app: Application, join: str, thing: str, unit: int) -> dict[tuple[str, str], Any]:
    """Return the results of a join for a thing by the positions of their records."""
    found = {}
    for value in app.values("out"):
        result = decode_joined(value)
        name, of_unit, left, right = result.id.split(":")
        if (name, int(of_unit), result.thing) == (join, unit, thing):
            found[left, right] = result.result
    return found


def _is_near(left: str, right: str, positions: dict[str, set[str]]) -> bool:
    return left in positions["left"] or right in positions["right"]


def _is_in(pair: Any, positions: dict[str, set[str]]) -> bool:
    return pair["left"] in positions["left"] and pair["right"] in positions["right"]


@needs_browser
@pytest.mark.slow
def test_an_operator_sees_the_pairs_of_a_thing(app: Application, control: ControlService, browser: Browser) -> None:
    app.create_topics()
    app.produce(seeded_entries(105, 900))
    joiner = app.start()
    app.wait_until_through()
    for viewport, scheme in SCREENS:
        visitor = Visitor(browser, control, viewport=viewport, color_scheme=scheme)
        visitor.log_in()
        page, name = visitor.page, f"{scheme} {viewport['width']}"
        page.get_by_role("link", name="Join").click()
        expect(page.get_by_text("pairs between them.")).to_be_visible(timeout=SEEN_MS)
        expect(page.locator(".nicegui-echart canvas").first).to_be_visible(timeout=SEEN_MS)
        assert visitor.faults() == [], name
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"], f"{name}: the page is wider than the screen"
        visitor.picture(f"join-{name.replace(' ', '-')}")
        assert (visitor.elsewhere, visitor.errors) == ([], []), name
        visitor.context.close()
    assert joiner.stop() == 0


@needs_browser
@pytest.mark.slow
def test_the_plot_follows_what_arrives_and_what_is_chosen(
    app: Application, control: ControlService, browser: Browser, tmp_path: Path
) -> None:
    first, second = things_over_all_units(2)
    app.create_topics()
    app.produce([record(second, "speed", BASE_MS + 100 * at, 1.0, f"s{at}") for at in range(9)])
    joiner = app.start()
    app.wait_until_through()
    visitor = Visitor(browser, control, viewport={"width": 1280, "height": 1200})
    page = visitor.page
    visitor.log_in()
    page.get_by_role("link", name="Join").click()
    sentence = "{} in power: the last {} records of speed and {} of torque, with {} pairs between them."
    expect(page.get_by_text(sentence.format(second, 9, 0, 0))).to_be_visible(timeout=SEEN_MS)
    row = page.get_by_role("row").filter(has_text=second)
    expect(row.filter(has_text="waits for torque (silent since the start)")).to_be_visible(timeout=RENEWED_MS)
    app.produce([record(second, "torque", BASE_MS + 100 * at + 50, 2.0, f"t{at}") for at in range(9)])
    expect(page.get_by_text(sentence.format(second, 9, 9, 17))).to_be_visible(timeout=RENEWED_MS)
    assert "lines for 17 pairs" in (page.locator(".nicegui-echart").get_attribute("aria-label") or "")
    expect(page.get_by_role("row").filter(has_text="0.20944")).to_have_count(10)
    visitor.picture("join-pairs")
    # By keyboard: a thing without pairs, for which nothing is held.
    app.produce([record(first, "speed", BASE_MS, 1.0, "s")])
    page.get_by_label("Thing").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type(first)
    expect(page.get_by_text(sentence.format(first, 1, 0, 0))).to_be_visible(timeout=RENEWED_MS)
    page.get_by_role("button", name=f"Show {second}").press("Enter")
    expect(page.get_by_text(sentence.format(second, 9, 9, 17))).to_be_visible(timeout=RENEWED_MS)
    # Nothing is read for a page that nobody sees, although its headline goes on.
    page.evaluate(SET_VISIBILITY, "hidden")
    for at in range(9, 15):
        time_ms = BASE_MS + 100 * at
        app.produce([record(second, "speed", time_ms, 1.0, f"s{at}"), record(second, "torque", time_ms + 50, 2.0, "t")])
        expect(page.get_by_text(f"{2 * at + 1} results")).to_be_visible(timeout=SEEN_MS)
    expect(page.get_by_text(sentence.format(second, 15, 15, 29))).to_have_count(0)
    page.evaluate(SET_VISIBILITY, "visible")
    expect(page.get_by_text(sentence.format(second, 15, 15, 29))).to_be_visible(timeout=RENEWED_MS)
    # Whoever loses the role loses the contents, without loading the page again.
    users, draft = tmp_path / "users", tmp_path / "users.new"
    # Replaced atomically, because a user who is not in the file for a moment is logged out.
    draft.touch(mode=0o600)
    draft.write_text(users.read_text().replace("otto:operator:", "otto:viewer:"))
    draft.replace(users)
    expect(page.get_by_text("this needs the role operator, and otto is viewer")).to_be_visible(timeout=RENEWED_MS)
    expect(page.get_by_text("pairs between them.")).to_have_count(0)
    expect(page.get_by_role("row").filter(has_text="0.20944")).to_have_count(0)
    assert (visitor.elsewhere, visitor.errors) == ([], [])
    assert joiner.stop() == 0


@needs_browser
@pytest.mark.slow
def test_a_viewer_sees_what_is_held_but_no_contents(
    app: Application, control: ControlService, browser: Browser
) -> None:
    run_once(app, 106, 300)
    visitor = Visitor(browser, control)
    page = visitor.page
    visitor.log_in(name="vera")
    page.get_by_role("link", name="Join").click()
    expect(page.get_by_role("row").filter(has_text=things_over_all_units(1)[0]).first).to_be_visible(timeout=SEEN_MS)
    expect(page.get_by_text("this needs the role operator, and vera is viewer")).to_be_visible(timeout=SEEN_MS)
    expect(page.get_by_text("pairs between them.")).to_have_count(0)
    expect(page.locator(".nicegui-echart")).to_be_hidden()
    assert visitor.faults() == []
    assert (visitor.elsewhere, visitor.errors) == ([], [])
