"""Builds the tables for throughput, its costs, the contenders' states, and the other workloads."""

from __future__ import annotations

from typing import Final

from bench.contest import engine
from bench.contest.contenders import (
    CEILINGS,
    CONTENDERS,
    OURS,
    PASS_THROUGH,
    SPARK_BEST,
    SPARK_DEFAULT,
    SPARK_TUNED,
)
from bench.contest.plan import BASES
from bench.contest.report.figures import (
    NONE,
    SAME_TURN,
    Found,
    by,
    excess,
    mega,
    percent,
    rate,
    reached,
    short,
    shown,
    spread,
    thousands,
    values,
    whole,
)
from bench.contest.workload.inputs import AVRO, ROWS
from bench.harness.report import table

PRICE_EUR: Final = 0.04
"""The assumed price of a core-hour in euros, used to compute the cost of records."""


def of_pass_through(runs: list[Found], measurements: list[Found]) -> list[float]:
    """Return the ratio of each run's rate to that of the fastest pass-through in its turn, if there is one."""
    names = {PASS_THROUGH.name, *(one.name for one in CEILINGS)}
    turns = by((one for one in measurements if one["contender"] in names), *SAME_TURN)
    best = {turn: max(values(found, "records_per_s"), default=0.0) for turn, found in turns.items()}
    return [
        rate / best[turn]
        for turn, found in by(runs, *SAME_TURN).items()
        for rate in values(found, "records_per_s")
        if best.get(turn)
    ]


def throughput(measurements: list[Found]) -> list[str]:
    """Return the throughput table."""
    rows = []
    for (name,), runs in by(measurements, "contender").items():
        rows.append(
            (
                name,
                CONTENDERS[name].guarantee if name in CONTENDERS else NONE,
                len(runs),
                rate(runs),
                shown(runs, "steady_s", short),
                spread(of_pass_through(runs, measurements) if name != engine.NAME else [], "{:.2f}".format),
                shown(runs, "results_per_s", thousands),
                reached(runs),
                shown(runs, "start_s", short),
            )
        )
    heads = [
        "",
        "guarantee",
        "runs",
        "thousand records/s in",
        "steady part, s",
        "of the fastest pass-through in the turn",
        "thousand results/s out",
    ]
    heads += ["input processed within the time limit", "s from start to first result"]
    return [*about("alternating", measurements), *table(heads, rows)] if rows else []


def about(workload: str, measurements: list[Found]) -> list[str]:
    """Return the description of a workload."""
    words = next((one["about"] for one in measurements if "about" in one), "")
    rows = max((one.get("rows", 0) for one in measurements), default=0)
    return ["", f'Workload "{workload}": {words}; {rows:,} records.']


def costs(measurements: list[Found]) -> list[str]:
    """Return a table of what each contender found, and how much CPU time, memory and disk space it used."""
    rows = []
    for (name,), runs in by(measurements, "contender").items():
        rows.append(
            (
                name,
                shown(runs, "complete", percent),
                excess(runs),
                shown(runs, "double", whole),
                shown(runs, "cpu_s_per_million", short),
                shown(runs, "kafka_cpu_s_per_million", short),
                spread([eur_per_billion(one) for one in runs if one.get("kafka_cpu_s_per_million")], "{:,.3f}".format),
                shown(runs, "memory_bytes", mega),
                shown(runs, "kafka_bytes", mega),
            )
        )
    heads = ["", "neighbours found", "results that are not neighbours", "duplicate results", "CPU s/million records"]
    heads += ["Kafka CPU s", "€/billion records", "memory, MB", "written to Kafka, MB"]
    price = (
        f"*€/billion records* is the price of the CPU time that the contender and Kafka use, at {PRICE_EUR} € per "
        "core-hour. It does not include memory, disks, networks or idle cores."
    )
    return [*table(heads, rows), "", price] if rows else []


def eur_per_billion(one: Found) -> float:
    """Return the price, in euros, of the CPU time that the contender and Kafka spend on a billion records."""
    cpu_s = float(one["cpu_s_per_million"] + one["kafka_cpu_s_per_million"])
    return cpu_s * 1000 / 3600 * PRICE_EUR


def states(measurements: list[Found]) -> list[str]:
    """Return a table of the contenders' state sizes, sampled at the same input positions for every contender."""
    rows = []
    for (name,), runs in by(measurements, "contender").items():
        found = [one["state"] for one in runs if one.get("state", {}).get("positions")]
        if not found:
            continue

        def both(figure: str, form: str, found: list[Found] = found) -> str:
            pairs = [one[figure] for one in found if figure in one]
            if not pairs:
                return NONE
            return " / ".join(form.format(max(pair[place] for pair in pairs)) for place in (0, 1))

        rows.append(
            (
                name,
                min(one["positions"] for one in found),
                both("needed_rows", "{:,.0f}"),
                both("rows", "{:,.0f}"),
                spread([one["batch_share"] for one in found if "batch_share" in one], percent),
                both("bytes", "{:,.0f}"),
            )
        )
    heads = ["", "positions", "records that must be held", "records held", "at most of the batch in progress"]
    words = (
        "Figures are the median / maximum over nine positions spaced a tenth of the input apart; a run that was cut "
        "off reached fewer of them. *Records that must be held* have a neighbour that comes later. *At most of the "
        "batch in progress* is the largest share of the held records that may be held only because their batch has "
        "not ended."
    )
    stored = (
        "*Bytes stored* are not directly comparable. For a peer, they are the size of all files in its state folder, "
        "including old versions, logs and checkpoints. For the joiner, they are the size of the newest snapshots, "
        "without the input that it rereads after a restart. State that an engine keeps in memory or in Kafka is not "
        "measured."
    )
    return ["", words, "", stored, *table([*heads, "bytes stored"], rows)] if rows else []


RATIOS: Final = (
    ("plain process", SPARK_TUNED.name),
    ("plain process", SPARK_BEST.name),
    ("plain process", SPARK_DEFAULT.name),
    ("Spark stage", SPARK_TUNED.name),
    ("Spark stage", SPARK_BEST.name),
    ("plain process", "Flink interval join"),
    *(("plain process", one.name) for one in (PASS_THROUGH, *CEILINGS)),
    *(("Spark stage", one.name) for one in CEILINGS),
    *(("plain process", name) for name in ("Flink by hand", "Kafka Streams by hand")),
)
"""The rates to compare."""
_LATE_RATE: Final = 5_000


def ratios(figures: dict[str, list[Found]]) -> list[str]:
    """Return a table that compares the rates of two contenders within each turn; see `SAME_TURN`.

    Runs that did not read their input to the end are not compared.
    """
    whole_runs = (one for one in figures["throughput"] if one.get("records_per_s") and not one.get("withheld"))
    rates = by(whole_runs, "contender", *SAME_TURN)
    rows = [
        (
            f"{one} : {other}, records/s",
            [
                runs[0]["records_per_s"] / rates[other, *turn][0]["records_per_s"]
                for (name, *turn), runs in rates.items()
                if name == one and (other, *turn) in rates
            ],
        )
        for one, other in RATIOS
    ]
    rows.append((f"p99 at {_LATE_RATE:,}/s, {SPARK_BEST.name} : plain process", _late_ratio(figures["latency"])))
    cells = [(what, len(of_turns), spread(of_turns, short)) for what, of_turns in rows if of_turns]
    return table(["ratio of each turn", "turns", "ratio"], cells) if cells else []


def _late_ratio(measurements: list[Found]) -> list[float]:
    """Return the ratio of the p99 of Spark's fastest variant to that of the plain process, for each turn."""
    of_turn = by((one for one in measurements if one.get("rate") == _LATE_RATE and one.get("ms")), *SAME_TURN)
    ratios = []
    for found in of_turn.values():
        ours, theirs = (
            [one["ms"][1] for one in found if BASES.get(one["contender"], one["contender"]) == name and one["ms"][1]]
            for name in ("plain process", SPARK_BEST.name)
        )
        if ours and theirs:
            ratios.append(min(theirs) / ours[0])
    return ratios


def workloads(measurements: list[Found]) -> list[str]:
    """Return the table of the other workloads. It leaves out a column with no figures, as in older files."""
    has_rows = any("rows" in one.get("state", {}) for one in measurements)
    rows = []
    for (workload, name, _, width_ms), runs in by(measurements, "workload", "contender", "share", "width_ms").items():
        held = spread([one["state"]["rows"][1] for one in runs if "rows" in one.get("state", {})], whole)
        rows.append(
            (
                workload,
                name,
                f"{width_ms:,}" if width_ms else NONE,
                rate(runs),
                shown(runs, "complete", percent),
                excess(runs),
                *([held] if has_rows else []),
                reached(runs),
            )
        )
    heads = ["workload", "", "window, ms", "thousand records/s", "neighbours found", "results that are not neighbours"]
    descriptions = {one["workload"]: one["about"] for one in measurements if "about" in one}
    words = [f"- {name}: {text}." for name, text in descriptions.items()]
    wide = "Each window is just wide enough to find 99 % of the neighbours."
    heads += [*(["largest number of records held"] if has_rows else []), "input processed"]
    return ["", *words, "", wide, *table(heads, rows)] if rows else []


def of_two_stream_join(runs: list[Found], measurements: list[Found]) -> list[float]:
    """Return the ratio of each run's rate to that of the two-stream join in the same turn, if there is one."""
    return _of_turn(runs, [one for one in measurements if one["workload"] != ROWS])


def _of_turn(runs: list[Found], others: list[Found]) -> list[float]:
    """Return the ratio of each run's rate to that of the first of the other runs in the same turn, if there is one."""
    turns = by(others, *SAME_TURN)
    return [
        one["records_per_s"] / turns[turn][0]["records_per_s"]
        for turn, found in by(runs, *SAME_TURN).items()
        for one in found
        if one.get("records_per_s") and turn in turns and turns[turn][0].get("records_per_s")
    ]


def rows(measurements: list[Found]) -> list[str]:
    """Return the table of aligned rows, with the two-stream join that ran in the same turns."""
    lines = [
        (
            f"{name}: {'aligned rows' if workload == ROWS else 'two-stream join'}",
            CONTENDERS[name].guarantee,
            len(runs),
            rate(runs),
            spread(of_two_stream_join(runs, measurements), "{:.2f}".format),
            shown(runs, "complete", percent),
            excess(runs),
            shown(runs, "double", whole),
            shown(runs, "cpu_s_per_million", short),
            shown(runs, "kafka_cpu_s_per_million", short),
        )
        for (name, workload), runs in by(measurements, "contender", "workload").items()
    ]
    heads = ["", "guarantee", "runs", "thousand records/s in", "of the two-stream join of the turn", "results found"]
    heads += ["wrong results", "duplicate results", "CPU s/million records", "Kafka CPU s"]
    words = (
        "Each row has a driver's value and the previous values of three columns. It counts as several results: one for "
        "the row itself, and one for each value."
    )
    about_rows = about(ROWS, [one for one in measurements if one["workload"] == ROWS])
    return [*about_rows, words, *table(heads, lines)] if lines else []


def avro(measurements: list[Found], version: str) -> list[str]:
    """Return the table of the input in Avro, with the joiner on the same records in JSON, which ran in the same turns.

    ``version`` is that of Apache Avro for Java. Runs that did not read their input to the end are not compared.
    """
    whole_runs = [one for one in measurements if not one.get("withheld")]
    ours = [one for one in whole_runs if one["contender"] == OURS[0].name and one["workload"] == AVRO]
    lines = [
        (
            f"{name}: {'Avro' if workload == AVRO else 'JSON'}",
            CONTENDERS[name].guarantee,
            len(runs),
            rate(runs),
            shown(runs, "steady_s", short),
            spread(_of_turn([one for one in runs if not one.get("withheld")], ours), "{:.2f}".format),
            shown(runs, "complete", percent),
            excess(runs),
            shown(runs, "double", whole),
            shown(runs, "cpu_s_per_million", short),
            shown(runs, "kafka_cpu_s_per_million", short),
            reached(runs),
        )
        for (name, workload), runs in by(measurements, "contender", "workload").items()
    ]
    heads = ["", "guarantee", "runs", "thousand records/s in", "steady part, s"]
    heads += [f"of the {OURS[0].name} on Avro of the turn", "neighbours found", "results that are not neighbours"]
    heads += ["duplicate results", "CPU s/million records", "Kafka CPU s", "input processed"]
    words = (
        "Each message begins with a byte 0 and the id of its schema. The results are in JSON, as in the other "
        f"workloads. The programs in Java read the messages with Apache Avro {version}, and Flink's interval join with "
        "Flink's own format."
    )
    return [*about(AVRO, measurements), words, *table(heads, lines)] if lines else []


def widths(measurements: list[Found]) -> list[str]:
    """Return the table of window widths."""
    rows = [
        (
            name,
            f"{width_ms:,}" if width_ms else "none",
            rate(runs),
            shown(runs, "complete", percent),
            excess(runs),
            reached(runs),
        )
        for (name, width_ms), runs in by(measurements, "contender", "width_ms").items()
    ]
    heads = ["", "window, ms", "thousand records/s", "neighbours found", "results that are not neighbours"]
    return [*about("varying gaps", measurements), *table([*heads, "input processed"], rows)] if rows else []


def curves(measurements: list[Found]) -> list[str]:
    """Return the table of the curves."""
    rows = [
        (
            curve,
            f"{at:,}",
            name,
            rate(runs),
            shown(runs, "complete", percent),
            shown(runs, "cpu_s_per_million", short),
            shown(runs, "memory_bytes", mega),
            reached(runs),
        )
        for (curve, at, name), runs in by(measurements, "curve", "at", "contender").items()
    ]
    heads = ["what changes", "to", "", "thousand records/s", "neighbours found", "CPU s/million records", "memory, MB"]
    words = (
        "Each curve varies one property of the alternating workload. Each window is just wide enough to find all "
        "neighbours. *Cores* is the number of cores that the contender may use; Kafka may always use all of them."
    )
    return ["", words, *table([*heads, "input processed"], rows)] if rows else []
