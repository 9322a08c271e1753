"""Is the topology what flows between real servers, and is its drawing usable by everyone?"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, expect

from control.facts.graph.parts import numbers
from tests.integration.browser import NARROW, SCREENS, SEEN_MS, WIDE, Visitor, needs_browser
from tests.integration.control_service import ControlService, control_service
from tests.integration.joiner_application import ALIGNS, PARTITIONS, Application, application, flowing, seeded_entries
from tests.integration.services import ends_of, kill, start_service, stop, topic_reader, wait_until

if TYPE_CHECKING:
    # pytest loads a conftest itself; importing it at run time would create a second copy.
    from tests.integration.conftest import InfluxdbAccess

pytestmark = pytest.mark.slow

_PAINTED = 5_000
"""A drawing has far more pixels than that, and a canvas without a drawing has none."""

CONNECTORS = """
[mqtt]
host = "broker.example"
password = "never-shown"

[influxdb]
url = "{url}"
bucket = "{bucket}"

[db_connector]
group = "{name}-points"
"""


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    for made in application(kafka, tmp_path):
        made.aligns = ALIGNS + CONNECTORS.format(url="http://db.example:8086", bucket="lsb/autogen", name=made.name)
        yield made


class Shown:
    """What the service says of an application's topology."""

    def __init__(self, control: ControlService, app: Application) -> None:
        self._control, self._app = control, app

    def now(self) -> Any:
        """Return the topology."""
        return self._control.get(f"applications/{self._app.name}/topology")

    def node(self, identity: str, now: Any = None) -> Any:
        """Return a node, or an empty one if there is none. ``now``: the topology, if it was asked for before."""
        return next((node for node in (now or self.now())["nodes"] if node["id"] == identity), {"state": ""})

    def edge(self, source: str, target: str, now: Any = None) -> Any:
        """Return an edge. ``now``: as above."""
        (found,) = [edge for edge in (now or self.now())["edges"] if (edge["from"], edge["to"]) == (source, target)]
        return found

    def ends(self, kind: str, now: Any = None) -> int:
        """Return the sum of the end offsets of a topic, or -1 if it is not shown. ``now``: as above."""
        shown = self.node(f"topic:{self._app.topic(kind)}", now).get("details", {}).get("ends", "-1")
        return int(shown.removesuffix(" offsets").replace(",", ""))


def ends(app: Application, kind: str) -> int:
    """Return the sum of the end offsets of a topic."""
    with closing(topic_reader(app.bootstrap, f"{app.name}-watch")) as consumer:
        return sum(ends_of(consumer, app.topic(kind), PARTITIONS))


def test_rates_and_lag_are_those_of_what_was_produced_and_consumed(app: Application, tmp_path: Path) -> None:
    data, site = f"topic:{app.topic('data')}", "site:process"
    with control_service(app.config, tmp_path) as control:
        shown = Shown(control, app)
        wait_until(lambda: shown.node(data)["state"] == "does not exist yet", "the topics are shown as configured")
        app.create_topics()
        entries = seeded_entries(101, 600)
        app.produce(entries)
        wait_until(lambda: shown.ends("data") == len(entries), "what was produced is shown before the first run")
        assert shown.node(site)["state"] == "has never run"
        assert shown.edge(data, site)["rate"] is None
        joiner = app.start()
        with flowing(app, 102):
            wait_until(lambda: (shown.edge(data, site)["rate"] or 0) > 0, "it is shown that records are consumed")
            out = f"topic:{app.topic('out')}"
            wait_until(lambda: (shown.edge(site, out)["rate"] or 0) > 0, "it is shown that results are written")
            wait_until(lambda: (shown.edge("connector", data)["rate"] or 0) > 0, "it is shown that records arrive")
        app.wait_until_through()

        def is_idle() -> bool:
            now = shown.now()
            flow, units = shown.edge(data, site, now), shown.node("instance:process/one", now).get("units")
            served = f"{PARTITIONS} of {PARTITIONS} units served"
            found = (flow["rate"], flow["lag"], shown.node(site, now)["state"], units)
            return found == (0, 0, served, list(range(PARTITIONS)))

        wait_until(is_idle, "it is shown that nothing is consumed any more, and all units are served")
        expected = {kind: ends(app, kind) for kind in ("data", "out", "late", "unmatched", "rejected")}

        def are_ends_shown() -> bool:
            # One request for all of them, because the service limits how many it answers in a second.
            now = shown.now()
            return {kind: shown.ends(kind, now) for kind in expected} == expected

        wait_until(are_ends_shown, "the ends of the topics are shown")
        assert joiner.stop() == 0
        app.produce(entries)
        wait_until(lambda: shown.edge(data, site)["lag"] == len(entries), "the lag is what was produced since")
        wait_until(lambda: shown.node("unowned:process")["state"] == "stopped by one", "the units have no owner")
        assert shown.edge(data, site)["level"] == "trouble"
        trouble = {
            "level": "trouble",
            "text": f"Units {numbers(range(PARTITIONS))} of process have no owner: stopped by one",
        }
        assert trouble in shown.now()["troubles"]
        assert shown.node("mqtt_broker")["details"]["address"] == "broker.example:1883"
        assert "never-shown" not in str(shown.now())
        assert control.stop() == 0


def test_the_lag_of_the_db_connector_is_that_of_its_group(
    app: Application, influxdb: InfluxdbAccess, tmp_path: Path
) -> None:
    app.aligns = ALIGNS + CONNECTORS.format(url=influxdb.url, bucket=influxdb.bucket, name=app.name)
    app.create_topics()
    app.produce(seeded_entries(103, 900))
    joiner = app.start()
    app.wait_until_through()
    assert joiner.stop() == 0
    results = ends(app, "out")
    assert results > 0
    out = f"topic:{app.topic('out')}"
    with control_service(app.config, tmp_path) as control:
        shown = Shown(control, app)
        wait_until(lambda: shown.edge(out, "db_connector")["lag"] == results, "all results wait")
        assert (shown.node("db_connector")["state"], shown.node("db_connector")["level"]) == ("not running", "trouble")
        process = _db_connector(app, tmp_path)
        try:
            wait_until(lambda: shown.edge(out, "db_connector")["lag"] == 0, "all results are acknowledged")
            wait_until(lambda: shown.node("db_connector")["state"] == "1 running", "the connector is a member")
            assert f"db_connector ({numbers(range(PARTITIONS))})" in shown.node("db_connector")["details"]["members"]
            assert [one["text"] for one in shown.now()["troubles"] if "db_connector" in one["text"]] == []
            assert stop(process) == 0
        finally:
            kill(process)
        wait_until(lambda: shown.node("db_connector")["state"] == "not running", "the connector has left")
        assert (shown.node("db_connector")["level"], shown.edge(out, "db_connector")["lag"]) == ("warning", 0)
        assert control.stop() == 0


def _db_connector(app: Application, folder: Path) -> subprocess.Popen[bytes]:
    log = folder / "db_connector.log"
    return start_service("db_connector", "--config", str(app.config), environment={}, log=log)


@needs_browser
def test_a_person_sees_the_topology_live_wide_or_narrow_light_or_dark(
    app: Application, control: ControlService, browser: Browser
) -> None:
    app.application += "\nstandbys = 1"
    app.create_topics()
    joiners = [app.start(instance="one"), app.start(instance="two")]
    app.produce(seeded_entries(104, 600))
    app.wait_until_through()
    for viewport, scheme in SCREENS:
        visitor = Visitor(browser, control, viewport=viewport, color_scheme=scheme)
        _open(visitor)
        name = f"{scheme} {viewport['width']}"
        expect(visitor.page.get_by_role("row").filter(has_text="instance two")).to_have_count(1, timeout=SEEN_MS)
        _wait_for_drawing(visitor)
        assert visitor.faults() == [], name
        width = visitor.page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"], f"{name}: the page is wider than the screen"
        visitor.picture(f"topology-{name.replace(' ', '-')}")
        assert (visitor.elsewhere, visitor.errors) == ([], []), name
        visitor.context.close()
    visitor = Visitor(browser, control, viewport=WIDE)
    _open(visitor)
    _wait_for_drawing(visitor)
    place = visitor.page.locator("canvas").bounding_box()
    visitor.page.set_viewport_size(NARROW)
    wait_until(lambda: visitor.page.locator("canvas").bounding_box() != place, "the drawing has been turned")
    visitor.page.set_viewport_size(WIDE)
    for joiner in joiners:
        joiner.kill()
    expect(visitor.page.get_by_text("have no owner")).to_be_visible(timeout=SEEN_MS)
    expect(visitor.page.get_by_role("row").filter(has_text="no owner")).not_to_have_count(0)
    visitor.picture("topology-trouble")
    assert (visitor.elsewhere, visitor.errors) == ([], [])
    visitor.context.close()


def _open(visitor: Visitor) -> None:
    visitor.log_in()
    visitor.page.get_by_role("link", name="Topology").click()
    expect(visitor.page.get_by_role("link", name="Topology")).to_have_attribute("aria-current", "page", timeout=SEEN_MS)


def _wait_for_drawing(visitor: Visitor) -> None:
    wait_until(lambda: _painted(visitor) > _PAINTED, "there is a drawing")


def _painted(visitor: Visitor) -> int:
    """Return how many pixels of the drawing are not transparent."""
    return int(
        visitor.page.evaluate(
            """() => {
                const canvas = document.querySelector("canvas");
                if (canvas === null || canvas.width === 0 || canvas.height === 0) return 0;
                const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                return pixels.reduce((sum, value, at) => sum + (at % 4 === 3 && value > 0 ? 1 : 0), 0);
            }"""
        )
    )
