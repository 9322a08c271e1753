"""A chain of three applications in memory: the results of each are the input of the next.

    first   joins of the records: ``p`` = speed * torque, ``g`` = command - speed
    second  an align of these results: ``table``, a row for each ``p`` with the ``g`` around it
    third   a join of the rows with the results of the first: ``j`` = table - g

`Link` executes one application as a runner does: it reads batches, commits their effects with watermarks or without,
and restores its unit after a crash. `whole` computes the chain on whole tables, by the definitions.
"""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any, Final, NamedTuple

from joiner.check.model import aligned, oracle
from joiner.check.model.oracle import Rec, Watermark
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, Message, batch

RECORDS, RESULTS, ROWS, LAST = "records", "results", "rows", "last"
"""The topics, in the order of the chain."""

_MS_NS: Final = 10**6

# The results of a thing come in any order of time. Only watermarks advance the frontiers of streams with this lateness.
_LONG: Final = "36500d"

_RULES: Final = ("previous", "next", "nearest")
_TOLERANCE_NS: Final = 40 * 10**9
_ANY_ORDER_NS: Final = 10**18
"""The lateness of a table, whose records are in no particular order."""

Table = dict[tuple[str, int], float]
"""Values by thing and time in ns. No two records of a thing have the same time."""


class Result(NamedTuple):
    """A result, with what the definitions determine. ``values``: of a row alone."""

    quantity: str
    thing: str
    time_ns: int
    value: float
    values: tuple[float | None, ...] = ()


def settings_of(place: int, *, lateness: str = "0s", scope: str = "key") -> JoinerSettings:
    """Return the settings of the first, the second or the third application (0 to 2).

    ``lateness``, ``scope``: of the streams of records.
    """
    topics = (RECORDS, RESULTS, ROWS, LAST)
    given: dict[str, Any] = {
        "topics": {"partitions": 1, "data": topics[place], "out": topics[place + 1]},
        "application": {"name": f"application{place}", "watermark_interval": "1s"},
    }
    options = {"lateness": lateness, "watermark_scope": scope}
    if place == 0:
        given["join"] = [
            {"name": "p", "left": "speed", "right": "torque", "function": "product", "output": "p", **options},
            {"name": "g", "left": "command", "right": "speed", "function": "difference", "output": "g", **options},
        ]
    elif place == 1:
        columns = {rule: {"stream": "g", "rule": rule, "tolerance": "40s", "lateness": _LONG} for rule in _RULES}
        given["align"] = [{"name": "table", "driver": "p", "lateness": _LONG, "columns": columns}]
    else:
        left, right = {"quantity": "table"}, {"topic": RESULTS, "quantity": "g"}
        join = {"name": "j", "left": left, "right": right, "function": "difference", "output": "j"}
        given["join"] = [join | {"lateness": _LONG}]
    return JoinerSettings.model_validate(given)


class Link:
    """One application of a chain. ``logs``: the messages of every topic, by their offsets."""

    def __init__(self, settings: JoinerSettings, logs: dict[str, list[bytes]]) -> None:
        self._settings, self._logs = settings, logs
        self.unit = Unit(settings, 0, dict.fromkeys(settings.input_topics, 0))
        self._committed = dict(self.unit.offsets)
        self._saved = self.unit.snapshot()
        self._pending = Effects()

    def read(self, count: int) -> None:
        """Join up to ``count`` messages of each input topic."""
        ends = {topic: min(at + count, len(self._logs[topic])) for topic, at in self.unit.offsets.items()}
        self._pending.add(self.unit.apply(self._between(self.unit.offsets, ends), ends))

    def commit(self, *, with_watermarks: bool, with_snapshot: bool = False) -> None:
        """Write the effects of all batches since the last commit and, after them, the watermarks of the state."""
        if with_watermarks:
            self._pending.add_watermarks(self.unit.output_watermarks.take())
        topics = self._settings.topics
        messages = self._pending.messages(topics)
        others = [batch.values.each() for topic, batch in messages.items() if topic != topics.out]
        assert not others, "there is a late record or a dead letter"
        self._logs[topics.out] += messages[topics.out].values.each() if messages else []
        self._pending, self._committed = Effects(), dict(self.unit.offsets)
        if with_snapshot:
            self._saved = self.unit.snapshot()

    def crash(self) -> None:
        """Lose what has not been committed, and restore the unit from the last snapshot and a silent replay."""
        self.unit = Unit.restore(self._settings, 0, self._saved)
        messages = self._between(self.unit.offsets, self._committed)
        self.unit.apply(messages, self._committed, silent=True)
        self._pending = Effects()

    def _between(self, begin: dict[str, int], end: dict[str, int]) -> dict[str, Messages]:
        # The records are as old as a recording that is replayed.
        appended_ms = BASE_MS + 10**9
        return {
            topic: batch([Message(at, appended_ms, self._logs[topic][at]) for at in range(begin[topic], end[topic])])
            for topic in begin
            if end[topic] > begin[topic]
        }


def record(quantity: str, thing: str, time_ms: int, value: float, number: int) -> bytes:
    """Return a record of the first input."""
    content = {"thing": thing, "quantity": quantity, "phenomenonTime": time_ms, "result": value, "id": f"e{number}"}
    return json.dumps(content).encode()


def watermark(time_ms: int, **scope: str) -> bytes:
    """Return a watermark. ``scope``: its quantity and its thing, if any."""
    return json.dumps({"mark": time_ms, **scope}).encode()


def records_of(draw: random.Random, count: int, jitter_ms: int) -> list[bytes]:
    """Return records of three things and quantities, each out of order by at most ``jitter_ms``, and their end.

    The speed of the last thing falls silent early. No two records of a stream and thing have the same time.
    """
    used: set[tuple[str, str, int]] = set()
    found = []
    for number in range(count):
        quantity, thing = draw.choice(("speed", "torque", "command")), draw.choice("abc")
        time_ms = BASE_MS + 700 * number - draw.randint(0, jitter_ms)
        if (quantity, thing, time_ms) in used or ((quantity, thing) == ("speed", "c") and number > count // 4):
            continue
        used.add((quantity, thing, time_ms))
        found.append(record(quantity, thing, time_ms, draw.randint(-50, 500) / 4, number))
    return [*found, watermark(BASE_MS + 10**8)]


def results_of(log: list[bytes]) -> list[Result]:
    """Return the results of a log, without its watermarks, ordered."""
    found = []
    for value in log:
        content = json.loads(value, parse_float=Decimal)
        if "mark" not in content:
            time_ns = Decimal(content["phenomenonTime"]) * _MS_NS
            assert time_ns == int(time_ns)
            values = tuple(None if one is None else float(one) for one in content.get("values", {}).values())
            place = content["quantity"], content["thing"], int(time_ns)
            found.append(Result(*place, float(content["result"]), values))
    return sorted(found, key=_place)


def whole(records: list[bytes]) -> dict[str, list[Result]]:
    """Return the results of each application, computed on whole tables."""
    tables: dict[str, Table] = {quantity: {} for quantity in ("speed", "torque", "command")}
    for content in map(json.loads, records):
        if "mark" not in content:
            place = content["thing"], content["phenomenonTime"] * _MS_NS
            tables[content["quantity"]][place] = content["result"]
    p = _join(tables["speed"], tables["torque"], lambda left, right: left * right)
    g = _join(tables["command"], tables["speed"], lambda left, right: left - right)
    j = _join(p, g, lambda left, right: left - right)
    first = [Result(name, *place, value) for name, table in (("g", g), ("p", p)) for place, value in table.items()]
    last = [Result("j", *place, value) for place, value in j.items()]
    return {RESULTS: sorted(first, key=_place), ROWS: sorted(_rows(p, g), key=_place), LAST: sorted(last, key=_place)}


def _join(left: Table, right: Table, function: Any) -> Table:
    found: Table = {}
    lefts, rights = _entries(left), _entries(right)
    for left_seq, right_seq in oracle.join(lefts, rights, lateness_ns=_ANY_ORDER_NS, closed=True).pairs:
        one, other = list(left)[left_seq], list(right)[right_seq]
        time_ns, half = divmod(one[1] + other[1], 2)
        assert not half
        assert (one[0], time_ns) not in found
        found[one[0], time_ns] = function(left[one], right[other])
    return found


def _rows(driver: Table, column: Table) -> list[Result]:
    values = dict(enumerate(column.values()))
    columns = [
        aligned.Column(_entries(column), values, rule, _TOLERANCE_NS, None, "null", _ANY_ORDER_NS) for rule in _RULES
    ]
    rows, _ = aligned.align(_entries(driver), columns, lateness_ns=_ANY_ORDER_NS, closed=True)
    places = list(driver)
    return [Result("table", *places[seq], driver[places[seq]], tuple(found)) for seq, found in rows.items()]


def _entries(table: Table) -> list[Rec | Watermark]:
    return [Rec("abc".index(thing), ts, seq) for seq, (thing, ts) in enumerate(table)]


def _place(result: Result) -> tuple[str, str, int]:
    return result[:3]
