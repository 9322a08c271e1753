"""Is everything in the drawing of a topology, in its place, and readable?"""

from __future__ import annotations

import json
from itertools import combinations
from math import inf, nan
from typing import Any

import msgspec
import pytest

from control.facts.flow.endpoints import Endpoints
from control.facts.graph.parts import LEVELS, Edge, Node
from control.facts.topology import Topology
from control.page.drawing.boxes import flow_text, hint_of
from control.page.drawing.layout import WIDTH, Room, lay_out, room_of
from control.page.drawing.paint import DARK, LIGHT, Colours, elements_of, frame_of, plain
from control.page.drawing.rows import FLOW_COLUMNS, PART_COLUMNS, flow_rows, part_rows
from control.page.drawing.shapes import Box, Drawing
from tests.unit.control import topologies
from tests.unit.control.topologies import ENDPOINTS, MERGED_ENDPOINTS, SHAPES, drawn, running

WIDTHS = (WIDTH[0], 328, 700, 1_248, 1_888, WIDTH[1])
EVERY = pytest.mark.parametrize(
    ("shape", "width", "endpoints"),
    [
        *((shape, width, ENDPOINTS) for shape in SHAPES for width in WIDTHS),
        *(("moving", width, Endpoints()) for width in WIDTHS),
        *(("with replicas", width, endpoints) for width in WIDTHS for endpoints in (MERGED_ENDPOINTS, Endpoints())),
        *(("with three replicas", width, MERGED_ENDPOINTS) for width in WIDTHS),
    ],
)


def drawing_of(shape: str, width: int, endpoints: Endpoints = ENDPOINTS) -> tuple[Topology, Drawing]:
    topology = drawn(SHAPES[shape](), endpoints)
    return topology, lay_out(topology, width)


@EVERY
def test_every_node_has_a_box_and_every_edge_a_line_with_what_it_says(
    shape: str, width: int, endpoints: Endpoints
) -> None:
    topology, drawing = drawing_of(shape, width, endpoints)
    assert sorted(box.key for box in drawing.boxes) == sorted(node.id for node in topology.nodes)
    assert len(drawing.lines) == len(topology.edges)
    shown = " ".join(label.text for label in drawing.labels)
    for edge in topology.edges:
        assert flow_text(edge, is_wide=True) in shown or flow_text(edge) in shown
        if edge.source.startswith("site:") and edge.target.startswith("site:"):
            assert edge.note in shown


@EVERY
def test_nothing_covers_anything_else_or_is_out_of_sight(shape: str, width: int, endpoints: Endpoints) -> None:
    topology, drawing = drawing_of(shape, width, endpoints)
    within = {node.id: node.within for node in topology.nodes}
    for box in drawing.boxes:
        assert box.x >= 0
        assert box.y >= 0
        assert box.right <= width
        assert box.bottom <= drawing.height
    boxes = {box.key: box for box in drawing.boxes}
    for one, other in combinations(drawing.boxes, 2):
        if other.key in _around(one.key, within) or one.key in _around(other.key, within):
            continue
        assert not _overlap(one, other), (one.key, other.key)
    for key, group in within.items():
        if group:
            assert _contains(boxes[group], boxes[key]), (group, key)
    points = [point for line in drawing.lines for point in line.points]
    assert all(0 <= x <= width and 0 <= y <= drawing.height for x, y in points)


@EVERY
def test_every_line_leads_from_its_source_to_its_target(shape: str, width: int, endpoints: Endpoints) -> None:
    topology, drawing = drawing_of(shape, width, endpoints)
    boxes = {box.key: box for box in drawing.boxes}
    lines = {line.key: line for line in drawing.lines}
    for number, edge in enumerate(topology.edges):
        line = lines[f"{number} {edge.source} {edge.target}"]
        assert _is_at_border(boxes[edge.source], line.points[0])
        assert _is_at_border(boxes[edge.target], line.points[-1])


def test_labels_of_the_same_column_do_not_cover_one_another() -> None:
    _, drawing = drawing_of("moving", 1_248)
    beside = [label for label in drawing.labels if "site:" in label.key]
    for one, other in combinations(beside, 2):
        assert abs(one.x - other.x) > 40 or abs(one.y - other.y) >= (one.height + other.height) / 2


@pytest.mark.parametrize(("width", "columns"), [(328, 1), (700, 1), (1_248, 5), (1_888, 7)])
def test_the_way_of_the_data_is_from_left_to_right_if_there_is_room(width: int, columns: int) -> None:
    topology, drawing = drawing_of("one instance", width)
    boxes = {box.key: box for box in drawing.boxes}
    outer = [boxes[node.id] for node in topology.nodes if not node.within]
    assert len({box.x for box in outer}) == columns
    way = ["connector", "topic:machine.data", "site:process", "topic:machine.out", "db_connector"]
    places = [(boxes[one].y if columns == 1 else boxes[one].x) for one in way]
    assert places == sorted(places)


@pytest.mark.parametrize("width", [328, 1_248, 1_888])
def test_the_way_of_the_data_leads_through_the_replicas_and_the_merger(width: int) -> None:
    _, drawing = drawing_of("with replicas", width, MERGED_ENDPOINTS)
    boxes = {box.key: box for box in drawing.boxes}
    ways = [
        ("topic:machine.data", "site:process", "topic:machine.out", "merger", "topic:machine.out.merged"),
        ("topic:machine.data", "replica:1", "topic:machine.out.r1", "merger", "topic:machine.out.merged"),
    ]
    for way in ways:
        places = [(boxes[one].x, boxes[one].y) for one in (*way, "db_connector", "database")]
        assert places == sorted(places)
    assert any(text.text == "replica 1" for text in boxes["replica:1"].texts)


@pytest.mark.parametrize("width", [1_248, 1_888])
def test_the_flows_of_replicas_do_not_cross_those_of_the_site(width: int) -> None:
    topology, drawing = drawing_of("with three replicas", width)
    boxes = {box.key: box for box in drawing.boxes}
    before = ["site:process", "replica:1", "replica:2"]
    order = [edge.target for one in before for edge in topology.edges if edge.source == one]
    heights = [[boxes[one].y for one in way] for way in (before, order)]
    assert heights == [sorted(way) for way in heights]


def _around(key: str, within: dict[str, str]) -> list[str]:
    found = []
    while key := within[key]:
        found.append(key)
    return found


def _overlap(one: Box, other: Box) -> bool:
    return one.x < other.right and other.x < one.right and one.y < other.bottom and other.y < one.bottom


def _contains(group: Box, box: Box) -> bool:
    across = group.x <= box.x and box.right <= group.right
    return across and group.y <= box.y and box.bottom <= group.bottom


def _is_at_border(box: Box, point: tuple[float, float]) -> bool:
    x, y = point
    is_inside = box.x - 0.5 <= x <= box.right + 0.5 and box.y - 0.5 <= y <= box.bottom + 0.5
    return is_inside and (
        min(abs(x - box.x), abs(x - box.right)) < 0.5 or min(abs(y - box.y), abs(y - box.bottom)) < 0.5
    )


@pytest.mark.parametrize("colours", [LIGHT, DARK])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_element_has_an_id_and_the_options_are_json(shape: str, colours: Colours) -> None:
    _, drawing = drawing_of(shape, 1_248)
    elements = elements_of(drawing, colours)
    assert len({element["id"] for element in elements}) == len(elements)
    assert json.loads(json.dumps([elements, frame_of(drawing)], allow_nan=False)) == [elements, frame_of(drawing)]


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_texts_have_enough_contrast_on_what_is_behind_them(colours: Colours) -> None:
    on_boxes = [colours.text, colours.muted, *(colours.levels[level] for level in LEVELS)]
    for behind in (colours.page, colours.group, colours.box):
        assert min(_contrast(text, behind) for text in on_boxes) >= 4.5
    assert _contrast(colours.text, colours.unit) >= 4.5
    assert min(_contrast(colours.page, colours.levels[level]) for level in ("warning", "trouble")) >= 4.5


def _contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, as WCAG 2 defines it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_texts_of_others_are_no_templates() -> None:
    assert plain("{b} {red|x}") == "(b) (red|x)"
    node = Node("instance:process/{a}", "instance", "{a}", "running", "ok", within="site:process", units=[])
    topology = drawn(running(instances=1))
    topology = msgspec.structs.replace(topology, nodes=[*topology.nodes, node])
    drawing = lay_out(topology, 1_248)
    texts = [element["style"].get("text", "") for element in elements_of(drawing, LIGHT)]
    hints = [point["tooltip"]["formatter"] for point in frame_of(drawing)["series"][0]["data"]]
    assert "(a)" in texts
    assert not any("{" in text for text in (*texts, *hints))


@pytest.mark.parametrize(
    ("edge", "text"),
    [
        (Edge("a", "b"), ""),
        (Edge("a", "b", rate=0.0, unit="records"), "0/s"),
        (Edge("a", "b", rate=0.04, unit="records"), "0.0/s"),
        (Edge("a", "b", rate=2.34, unit="records"), "2.3/s"),
        (Edge("a", "b", rate=1234.6, lag=0, unit="records"), "1,235/s"),
        (Edge("a", "b", rate=5.0, lag=1200, unit="offsets"), "5/s\n(offsets)\nlag 1,200"),
        (Edge("a", "b", lag=12_345_678), "lag 12.3 M"),
        (Edge("a", "b", lag=3), "lag 3"),
    ],
)
def test_a_flow_says_its_rate_and_what_waits(edge: Edge, text: str) -> None:
    assert flow_text(edge) == text


_NO_WIDTHS: list[Any] = [0, -5, nan, inf, "9", None, []]
_NO_ROOMS: list[Any] = [None, [], "x", 5, {}]


@pytest.mark.parametrize(
    ("given", "room"),
    [
        ({"width": 800.4, "dark": True}, Room(800, is_dark=True)),
        ({"width": 1, "dark": "yes"}, Room(240, is_dark=False)),
        ({"width": 10**400}, Room(4_000, is_dark=False)),
        *(({"width": width}, None) for width in _NO_WIDTHS),
        *((nothing, None) for nothing in _NO_ROOMS),
    ],
)
def test_whatever_a_browser_says_of_its_room_is_no_error(given: Any, room: Room | None) -> None:
    assert room_of(given) == room


@pytest.mark.parametrize("shape", SHAPES)
def test_the_tables_say_the_same_as_the_drawing(shape: str) -> None:
    topology, _ = drawing_of(shape, 1_248)
    flows, parts = flow_rows(topology), part_rows(topology)
    assert len(flows) == len({row["key"] for row in flows}) == len(topology.edges)
    assert len(parts) == len({row["key"] for row in parts}) == sum(node.kind != "unit" for node in topology.nodes)
    assert all(set(row) == {"key", *FLOW_COLUMNS} for row in flows)
    assert all(set(row) == {"key", *PART_COLUMNS} for row in parts)


def test_a_row_has_the_rate_with_its_unit_and_the_level() -> None:
    topology = drawn(topologies.with_trouble())
    (row,) = [row for row in flow_rows(topology) if row["to"] == "db_connector"]
    shown = {name: row[name] for name in FLOW_COLUMNS}
    assert shown == {
        "from": "topic machine.out",
        "to": "db_connector",
        "rate": "0.0 offsets/s",
        "lag": "5,600",
        "state": "trouble",
        "note": "acknowledged by the database",
    }
    parts = {row["part"]: row for row in part_rows(topology)}
    assert (parts["no owner"]["in"], parts["no owner"]["units"], parts["no owner"]["lag"]) == (
        "site process",
        "1",
        "1,234",
    )
    assert parts["standbys two"]["details"] == "two: 2 warm, 0 not warm"


def test_a_hint_says_all_that_is_known() -> None:
    node = Node("unit:3", "unit", "3", "running", "ok", rate=5.0, lag=2, details={"results": "7"})
    assert hint_of(node) == "unit 3\nstate: running\nrate: 5.0/s\nlag: 2\nresults: 7"
