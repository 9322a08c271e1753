"""The measured figures on the pages match recorded runs.

A measured figure is either written by the program that measured it (docs/benchmarks.md between its markers,
docs/evidence), or listed in `tests.unit.project.figures` with the recorded runs that it comes from. Every other number
with a unit is listed in `NOT_MEASURED`, with the reason why it is not a measurement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from string import Formatter
from typing import Final

import pytest

from bench.contest.report.figures import read_figures
from bench.contest.report.page import BEGIN, END, figure_lines, not_shown, with_figures
from bench.contest.report.plots import PLOTS
from tests.unit.project.documents import DOCS, ROOT, read, shown
from tests.unit.project.figures import figures
from tests.unit.project.recorded import RESULTS, Figure

BENCHMARKS: Final = DOCS / "benchmarks.md"
NOT_MEASURED: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "a limit or a time that the code sets": {
        "docs/connector.md": (
            *("first 64 KiB", "3.5 s at most, 5 s in all", "At most 100,000 quantities", "at most 100 times those"),
            *("(payload and topic) plus 2 KiB", "up to 10,000 or 5 MiB", "message for 10 s"),
            *("at most 10,000 records", "At most 100,000 nodes", "at most 10,000 metrics", "than 10,000 nodes"),
            *("at most 20,000 metrics", "is 256 KiB", "(256 messages are lost"),
            *("above 900,000 bytes", "at most once a minute"),
        ),
        "docs/control.md": (
            *(
                "the last 100 events",
                "The last 1,000 events",
                "the last 2,000 records",
                "bursts of 5 attempts",
                "within about ten seconds",
                "the last 10,000 messages",
                "about 64 MiB",
            ),
            *("one every 10 s, and bursts of 200 requests, then 50 a second", "up to 512 KiB"),
            *(
                "an order to move expires after 5 s",
                "for 20 s,",
                "no answer within 15 s",
                "after more than 30 s is not",
                "1 to 600 s, 60 by default",
                "the last 100 records of a thing",
            ),
            *("every three seconds while it is visible", "acknowledged for 30 s", "about the last 5 seconds"),
            *("more than 200,000 messages follow it", "more than 256 MB", "the last 20,000 offsets, or 8 MB"),
            "its committed offsets, every 10 s",
            *("the group `<application>/merge`, every 2 s", "at most 20,000 offsets and 8 MB of each replica"),
            "from at most 16 partitions",
            *("it may take 20 s", "kept for 3 s; if the reading took long, for four times as long as that, up to 30 s"),
        ),
        "docs/db_connector.md": (
            "the 32 MB that",
            "It ends within 5 s",
            "at most 256 kB long, and a request at most 4 MB",
        ),
        "docs/configuration.md": (
            *("When half of the limit is used", "and 1 KiB for each record"),
            *("up to 1 MiB, 100 levels of nesting, and numbers of up to 400 characters", "keep the first 64 KiB of"),
        ),
        "docs/formats.md": (
            *(
                "of 0 or less become 1 ms",
                "has more than 1,048,576 bytes",
                "a decimal has more than 166 bytes",
                "has more than 166 bytes or a scale",
                "compiled, 4 MiB; and the type",
                "that takes more than 30 s or 1 GiB",
                "A message can have up to 32 MiB",
                "64 KiB (65536 bytes)",
                "65536 rows and as many",
                "16 MiB (16777216 bytes)",
                "512 KiB (524288 bytes)",
                "repeated every 0.5 s",
                "at most 10,000 quantities",
            ),
            *("most 64 times the size", "has lasted for 2 s, and then every 10 s"),
            *("has taken 0.5 s, and repeated every 0.5 s", "wait until 5 s have passed without a repetition"),
            "A snapshot over 8 MiB",
            *("a retention of one day and 64 MB", "reads the last 2,000 records", "It is written five times per"),
            *("One is written every 10 s", "and at most 64 MB. Each record has a", "it is written every 5 s:"),
        ),
        "docs/instances.md": (
            *("five times per", "give the unit up within 5 s", "failure_timeout` (0.5 s)", "2.5 times the longest gap"),
            *("It is at most 6 s", "five times a second", "new owner is ready, for up to 2 s"),
            *("after half a second at first", "after up to 30 s", "This takes up to 2 s", "at most one day and 64 MB"),
            *("reads the last 2,000 records", "Every 5 s, it compares", "behind for 30 s", "within 5 minutes"),
            *("of the last 5 minutes", "at the latest after 5 s", "has been served for 3 s", "Every 2 s, each"),
            "answer for up to 30 s",
        ),
        "docs/kubernetes.md": ("exits within 5 s of SIGTERM", "after 5 minutes", "a login takes 64 MB"),
        "docs/guarantees.md": (
            *("a stop ends within five seconds", "saves it every 2 s", "first 64 KiB and hash", "checks every 5 s"),
            "a snapshot of up to 8 MiB",
        ),
        "docs/metrics.md": ("60 s (latency: 1 h; recovery: 5 min)", "after 3 s, the instance"),
        "docs/moving.md": (
            *(
                "repeats it every 0.5 s",
                "not repeated within 5 s",
                "waits twice as long before the next",
                "commits nothing within 0.5 s of its claim",
                "claims a released unit within 5 s",
            ),
            *("reclaims the unit after 5 s", "it checks every 2 s", "the source's after 5 s"),
        ),
        "docs/operations.md": (
            *("more than 80% of", "at 100% the unit stops", "at intervals of up to 10 s"),
            "if it has more than 32 MiB",
        ),
        "docs/your_data.md": ("is waited for only for 5 s", "held back (16 MiB,", "(up to 64 MiB)"),
        "docs/recovery.md": (
            "after a tenth of `snapshot_interval`",
            *(
                "rolls back within 20 s",
                "times out after 10 s",
                *("such transactions every 10 s", "after a start from 25 s on"),
                "know a schema | 1 s | 15 s |",
                "a snapshot of at most 8 MiB",
                "A snapshot over 8 MiB",
                "within the time limit of 2.5 to 3 s",
                "a last snapshot, within 5 s",
                "waits up to 30 s for transactions",
                "the commit after 30 s, the offsets after 11 s",
            ),
            *(
                "| 1 s | 8 s |",
                "another replica | 1 s | 5 s |",
                "| 1 s | 30 s |",
                "| 0.5 s | 2 s, for 10 s in all",
                "| 2 s | 120 s |",
            ),
            *("twice the previous one", "between 0.5 and 1.5"),
        ),
        "docs/spark.md": ("have not ended after 12 s", "wait for up to 30 s", "took Spark about half a second"),
        "docs/speed.md": ("(20 ms), or since", "batches of up to 30,000 records", "the wait is at most 4 ms"),
        "docs/tutorial.md": ("ends a service within five seconds",),
    },
    "a setting or a constant of another program": {
        "docs/benchmarks.md": ("a checkpoint every 200 ms", "up to 1 MB for 5 ms", "and 46 bids of 50 events"),
        "docs/speed.md": (
            *("the default is 100 ms", "retries after 20 ms", "Segments of 1 MB", "Kafka's default of 100 MB"),
            "a heap of 2 GB",
        ),
    },
    "a condition of the measurement, not a result": {
        "docs/benchmarks.md": (
            *("with 100 ms to each side", "A window for 99 % of the neighbours", "At 5,000 records a second"),
            *("of 890 ms at 5,000 records a second", "a fifth of a contender's results", "or 99 % of them"),
            *("Spark is given 10 s more", "up to 5,000 records a second", "At 20,000 records a second"),
            *("the joiner commits every 20 ms", "has batches of 200,000 records"),
        ),
        "docs/operations.md": ("later record at 5,000 records/s",),
        "docs/replicas.md": (
            "at 1,000 records a second, with",
            "each of three runs",
            "half a second later, stopped for two seconds",
            "from Kafka for two seconds",
            "one second before it to four seconds after it",
            "the middle 95 % of",
            "at 1,000 and at 50,000 records a second",
            "CPU time of the joiner, 1,000/s",
            "50,000/s | bytes",
            "to Kafka, 1,000/s | 50,000/s |",
            "in the merged topic",
        ),
        "docs/spark.md": ("at a load of 5,000 records a second",),
        "docs/speed.md": (
            *("In batches of ten thousand", "with ten thousand records in all", "with ten million"),
            *("a step with ten thousand", "between ten thousand and a million rows", "with 100,000 records ahead"),
            "With only ten thousand rows",
            *("a step of 10,000 records", "At 5,000 records a second"),
        ),
    },
    "advice": {"docs/operations.md": ("8 GB of memory", "| a third of what was measured")},
    "an example that can be counted": {
        "docs/semantics.md": ("23 pairs are certain",),
        "docs/tutorial.md": ("more than five seconds apart", "Replay the first 1,000 events"),
    },
    "a number of cases, not of a result": {"docs/guarantees.md": ("thousands of histories",)},
    "a floating-point value": {"docs/neighbour_join.md": ("0.0 equals -0.0",)},
    "a version": {
        "README.md": ("Apache License 2.0",),
        "docs/demo.md": ("`influxd` 1.8 named",),
        "docs/configuration.md": (
            *("2.x, or 1.8 with", "`-` for 1.8", "retention policy for 1.8", "1.8 without a password"),
            *("an influxd 1.8 to use",),
        ),
        "docs/neighbour_join.md": ("versions of Spark other than 4.3",),
    },
}
"""Numbers that look measured but are not, by reason and page. Each is quoted with some of the words around it."""

Span = tuple[int, int]

_NUMBER: Final = r"\d(?:[\d,.]*\d)?"
_UNIT: Final = (
    r"(?:%|(?:thousand|million|billion|records|results|points|messages|events|quantities|pairs|bytes|"
    r"ns|µs|us|ms|s|min|h|kB|KiB|MB|MiB|GB|GiB|seconds?|minutes?|hours?|times)\b)"
)
_FEW: Final = "three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|hundred"
_PART: Final = "third|quarter|fifth|sixth|seventh|eighth|ninth|tenth"
MEASUREMENT: Final = re.compile(
    rf"(?<![\w.])(?:{_NUMBER}(?: to | and | / |-)){{0,2}}{_NUMBER}\s?{_UNIT}"
    # A version follows a name, or has three parts.
    rf"|(?<![\w.])\d+\.\d+(?![\w.]*\d)"
    rf"|\b(?:{_FEW}|twenty-\w+)\s(?:times|ms|seconds|milliseconds|thousand|million)\b"
    rf"|\b(?:an?|one|two)\s(?:{_PART})s?\b|\bhalf\s(?:as|of|a second)\b|\btwice\sas\b"
    r"|\b(?:dozens?|tens|hundreds|thousands|millions)\b|\border of magnitude\b"
)
_GAP: Final = r"[\\s>]+"
"""What may separate words: also the beginning of a line in a quote."""
_VERSION: Final = re.compile(
    r"\b(?:Kafka|MQTT|InfluxDB|Python|Go|Java|Spark|pyspark|mosquitto|numpy|pandas|docker-compose|librdkafka|TLS"
    r"|Kubernetes|Helm)"
    r"(?: \d[\d.x]*(?: and| or|,))* \d[\d.]*",
    re.IGNORECASE,
)


def measured_pages() -> list[Path]:
    """Return the pages that are at least partly written by hand."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def blank(text: str, pattern: str, flags: int = 0) -> str:
    """Return the text with every match of the pattern replaced by spaces."""
    return re.sub(pattern, lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=flags)


def prose_of(text: str) -> str:
    """Return a page with code, link targets, versions and generated blocks replaced by spaces.

    Of the settings tables, only the last column is kept: test_docs compares the other columns with the code.
    """
    text = blank(text, r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    text = blank(text, f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    text = blank(text, r"`[^`\n]*`")
    text = blank(text, r"\]\([^)\s]*\)")
    text = blank(text, _VERSION.pattern, re.IGNORECASE)
    lines, is_settings, was_row = [], False, False
    for line in text.splitlines():
        is_row = line.startswith("|")
        if is_row and not was_row:
            is_settings = line.split("|")[1].strip() in {"setting", "flag"}
        was_row = is_row
        keep = line.rstrip("| ").rfind("|") if is_row and is_settings else 0
        lines.append(" " * keep + line[keep:])
    return "\n".join(lines)


def spans_of(text: str, figure: Figure) -> list[Span]:
    """Return the spans of the figures in the text. Raise `LookupError` if the passage does not occur exactly once."""
    pattern, any_pattern, number = "", "", 0
    for literal, field, form, _ in Formatter().parse(figure.text):
        spaced = re.sub(r"(?:\\ )+", _GAP, re.escape(literal))
        pattern, any_pattern = pattern + spaced, any_pattern + spaced
        if field is not None:
            pattern += f"({re.escape(format(figure.values[number], form or ''))})"
            any_pattern += r"([\d.,%]*[\d%])"
            number += 1
    if number != len(figure.values):
        raise LookupError(f"{figure.text!r} has {number} placeholders for {len(figure.values)} figures")
    found = list(re.finditer(pattern, text))
    if len(found) == 1:
        return [found[0].span(group) for group in range(1, number + 1)]
    recorded = figure.text.format(*figure.values)
    if len(found) > 1:
        raise LookupError(f"occurs {len(found)} times: {recorded!r}")
    others = [re.sub(r"\s+", " ", one[0]) for one in re.finditer(any_pattern, text)]
    raise LookupError(f"says {others}, recorded is {recorded!r}" if others else f"does not contain {figure.text!r}")


def not_measured(page: str, text: str) -> Iterator[Span]:
    """Yield the spans of the numbers that are not measurements."""
    for pages in NOT_MEASURED.values():
        for words in pages.get(page, ()):
            pattern = re.sub(r"(?:\\ )+", _GAP, re.escape(words))
            found = list(re.finditer(pattern, text))
            if not found:
                raise LookupError(f"{page} does not contain {words!r}")
            yield from (one.span() for one in found)


def unexplained(page: str, text: str, covered: list[Span]) -> list[str]:
    """Return the numbers that look measured but are not in ``covered``, each with its page, line and context."""
    prose, left = prose_of(text), []
    for found in MEASUREMENT.finditer(prose):
        numbers = [one.span() for one in re.finditer(_NUMBER, found[0])] or [(0, len(found[0]))]
        for begin, end in numbers:
            at = found.start() + begin, found.start() + end
            if not any(first <= at[0] and at[1] <= last for first, last in covered):
                line = text.count("\n", 0, at[0]) + 1
                left.append(f"{page}:{line}: {' '.join(text[max(0, at[0] - 40) : at[1] + 25].split())}")
    return left


def test_every_figure_of_a_page_is_that_of_its_recorded_runs() -> None:
    wrong = []
    for figure in figures():
        try:
            spans_of(read(ROOT / figure.page), figure)
        except LookupError as error:
            wrong.append(f"{figure.page} {error}")
    assert wrong == []


@pytest.mark.parametrize("page", measured_pages(), ids=shown)
def test_every_number_that_looks_measured_is_recorded_or_none(page: Path) -> None:
    text, covered = read(page), list[Span]()
    for figure in figures():
        # The test above reports a figure that is missing or differs from the recorded runs.
        with suppress(LookupError):
            covered += spans_of(text, figure) if figure.page == shown(page) else []
    assert unexplained(shown(page), text, [*covered, *not_measured(shown(page), text)]) == []


def test_what_is_no_measurement_is_on_a_page_that_there_is() -> None:
    assert {page for pages in NOT_MEASURED.values() for page in pages} <= set(map(shown, measured_pages()))
    assert all(reason for reason in NOT_MEASURED)


def test_the_figures_of_the_benchmarks_are_written_by_their_program() -> None:
    drawn = {name: f"plots/bench_{name}.png" for name in PLOTS}
    text = read(BENCHMARKS)
    lines = figure_lines(*read_figures(RESULTS), not_shown(text, drawn))
    assert with_figures(text, lines, "benchmarks.md") == text


PAGE: Final = "It makes 3.5 times\nthe rate, with 12 ms. `limit=5 s` of Kafka 4.3.1 and InfluxDB 1.8."


def test_a_figure_that_differs_from_its_record_is_told() -> None:
    assert spans_of(PAGE, Figure("x", "makes {:.1f} times the rate", (3.46,))) == [(9, 12)]
    with pytest.raises(LookupError, match=re.escape("says ['makes 3.5 times'], recorded is 'makes 3.4 times'")):
        spans_of(PAGE, Figure("x", "makes {:.1f} times", (3.4,)))
    with pytest.raises(LookupError, match="does not contain"):
        spans_of(PAGE, Figure("x", "takes {:.1f} times", (3.5,)))


@pytest.mark.parametrize(
    "text",
    [
        *("it takes 12 ms", "1.05 of it", "4.6 to 5.0 times", "7 % less", "five times as many", "a seventh more"),
        *("half as much again", "hundreds of them", "some 100,000 records/s", "twice as quick", "70 to 120 ms"),
    ],
)
def test_a_number_that_looks_measured_is_seen(text: str) -> None:
    assert unexplained("x", text, [])


def test_code_versions_and_what_is_explained_are_not_asked_for() -> None:
    assert unexplained("x", PAGE, [(9, 12), (34, 36)]) == []
    assert len(unexplained("x", PAGE, [(9, 12)])) == 1
