"""A chain of three applications computes what its definitions compute on whole tables, and does not get stuck."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from joiner.check.found.evidence import Message
from joiner.check.found.findings import Findings
from joiner.check.verify.output_watermarks import without_watermarks
from tests.property.chains import (
    LAST,
    RECORDS,
    RESULTS,
    ROWS,
    Link,
    record,
    records_of,
    results_of,
    settings_of,
    watermark,
    whole,
)
from tests.property.test_engine import note_seed
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS

OUTPUTS = (RESULTS, ROWS, LAST)


class Chain:
    """Three applications and the logs between them."""

    def __init__(self, *, lateness: str = "0s", scope: str = "key") -> None:
        self.logs: dict[str, list[bytes]] = {topic: [] for topic in (RECORDS, RESULTS, ROWS, LAST)}
        self.links = [Link(settings_of(place, lateness=lateness, scope=scope), self.logs) for place in range(3)]

    def feed(self, *messages: bytes) -> None:
        """Write messages to the first input, and let every application read and commit all that has arrived."""
        self.logs[RECORDS] += messages
        self.settle()

    def settle(self) -> None:
        """Let every application read what is left, and write watermarks."""
        for link in self.links:
            link.read(10**6)
            link.commit(with_watermarks=True)

    def things(self, topic: str) -> set[str]:
        """Return the things that have results in a topic."""
        return {result.thing for result in results_of(self.logs[topic])}


def check_watermarks(chain: Chain) -> int:
    """Check that no result is older than a watermark before it. Return the number of watermarks."""
    count = 0
    for place, topic in enumerate(OUTPUTS):
        findings = Findings()
        log = [Message(topic, 0, at, 0, None, value) for at, value in enumerate(chain.logs[topic])]
        without_watermarks(log, settings_of(place), findings)
        assert findings.is_right, findings.examples
        count += findings.counts.get("watermarks written", 0)
    return count


def play(seed: int) -> tuple[Chain, list[bytes]]:
    """Run a chain over random batches, merged commits, crashes and snapshots. Return it with its input."""
    draw = random.Random(seed)
    jitter_ms = draw.choice([0, 0, 5_000])
    records = records_of(draw, draw.randint(20, 120), jitter_ms)
    chain = Chain(lateness=f"{jitter_ms}ms", scope=draw.choice(["key", "key", "partition"]))
    left, largest = list(records), draw.choice([3, 10, 40])
    while left:
        for _ in range(draw.randint(1, largest)):
            if left:
                chain.logs[RECORDS].append(left.pop(0))
        link, chance = draw.choice(chain.links), draw.random()
        if chance < 0.1:
            link.crash()
            continue
        for _ in range(draw.choice([1, 1, 3])):
            link.read(draw.randint(1, largest))
        if chance < 0.8:
            link.commit(with_watermarks=draw.random() < 0.6, with_snapshot=draw.random() < 0.3)
    chain.settle()
    return chain, records


@pytest.mark.parametrize("block", range(4))
def test_a_chain_computes_what_the_definitions_compute_on_whole_tables(block: int) -> None:
    watermarks = 0
    for seed in range(12 * block, 12 * (block + 1)):
        with note_seed(seed):
            chain, records = play(seed)
            wanted = whole(records)
            for topic in OUTPUTS:
                assert results_of(chain.logs[topic]) == wanted[topic]
            watermarks += check_watermarks(chain)
    assert watermarks > 100


def steps(thing: str, times_s: Iterable[int], *quantities: str) -> list[bytes]:
    """Return a record of each quantity for every time."""
    return [
        record(quantity, thing, BASE_MS + 1000 * time_s + 100 * place, 1.0, 0)
        for time_s in times_s
        for place, quantity in enumerate(quantities)
    ]


ALL = ("speed", "torque", "command")


def test_a_silent_stream_holds_up_the_results_of_its_thing_alone_until_a_watermark_releases_them() -> None:
    chain = Chain()
    chain.feed(*steps("a", range(20), *ALL), *steps("b", range(20), *ALL))
    for topic in OUTPUTS:
        assert chain.things(topic) == {"a", "b"}
    before = {topic: results_of(chain.logs[topic]) for topic in OUTPUTS}
    # The torque of one thing falls silent, and so do its results ...
    chain.feed(*steps("a", range(20, 100), "speed", "command"), *steps("b", range(20, 100), *ALL))
    # ... except at the times that are certain without it.
    newest_ns = (BASE_MS + 30_000) * 10**6
    for topic in (ROWS, LAST):
        newest = {result.thing: result.time_ns for result in results_of(chain.logs[topic])}
        assert newest["a"] < newest_ns < newest["b"]
    held = len([result for result in results_of(chain.logs[LAST]) if result.thing == "a"])
    chain.feed(watermark(BASE_MS + 100_000, thing="a", quantity="torque"))
    released = [result for result in results_of(chain.logs[LAST]) if result.thing == "a"]
    assert len(released) > held + 20
    assert all(set(before[topic]) <= set(results_of(chain.logs[topic])) for topic in OUTPUTS)
    check_watermarks(chain)


def test_without_watermarks_nothing_comes_out_of_a_stream_that_does_not_count_on_its_order() -> None:
    """The lateness of the streams of results is long, so their frontiers follow from watermarks alone."""
    chain = Chain()
    chain.logs[RECORDS] += [*steps("a", range(50), *ALL), watermark(BASE_MS + 10**8)]
    for link in chain.links:
        link.read(10**6)
        link.commit(with_watermarks=False)
    assert len(results_of(chain.logs[RESULTS])) > 100
    assert not chain.logs[ROWS]
    chain.settle()
    chain.settle()
    assert len(results_of(chain.logs[LAST])) > 50
