"""The command line of the tester: the built-in cases, or ``verify``."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from broker.settings import InfluxdbSettings, SettingsError, load_settings
from joiner.check.cases import built_in_cases, large_case, random_case
from joiner.check.drive import Outcome, load_buffer, run_case
from joiner.check.events import EventsCheck
from joiner.check.evidence import EvidenceError
from joiner.check.kafka_log import KafkaEvidence
from joiner.check.points import PointsCheck, read_points
from joiner.check.report import render_findings, render_outcomes
from joiner.check.verify import FurtherCheck, WrongApplicationError, verify
from joiner.functions import load_function
from joiner.run.settings import JoinerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RIGHT: Final = 0
WRONG: Final = 1
UNUSABLE: Final = 2

_DESCRIPTION: Final = """Checks that the join is right.

Without a command: runs built-in and seeded random cases in memory, the engine against a nested-loop oracle
(joiner/check/oracle.py), in several cuts into batches and with a snapshot and restore at every step.

verify: reads what a running pipeline has committed, computes from its inputs what it must have put out, and
compares: neither less nor more, each once, with the right content."""

_EPILOG: Final = """examples:
  python joiner/tester.py
  python joiner/tester.py --seed 7 --random 2000
  python joiner/tester.py verify --config lsb.toml
  python joiner/tester.py verify --events events.json --influx --json report.json

exit status: 0 all is right; 1 there is a difference, or the check could not be made; 2 wrong usage or
settings"""

_VERIFY_EPILOG: Final = """A pipeline at rest gives the sharpest check. While the joiner runs on,
outputs that became due after its progress was read are counted as "after"; points that are still on their way
count as missing.

examples:
  python joiner/tester.py verify
  python joiner/tester.py verify --config lsb.toml --events events.json
  LSB_KAFKA__BOOTSTRAP_SERVERS=127.0.0.1:19092 python joiner/tester.py verify --influx --examples 20"""


class _MeasurementSettings(BaseModel):
    """What is needed of the section of the database connector, which has more."""

    measurement: str = "joined"


class VerifySettings(JoinerSettings):
    """The settings of the joiner, and where its results end up."""

    influxdb: InfluxdbSettings = InfluxdbSettings()
    db_connector: _MeasurementSettings = _MeasurementSettings()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tester; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        return _verify(options) if options.command == "verify" else _run_cases(options.seed, options.random)
    except (SettingsError, WrongApplicationError) as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    except EvidenceError as error:
        print(f"The check cannot be made: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return WRONG


@contextmanager
def _no_cycle_search() -> Iterator[None]:
    """Millions of records are held, none in a cycle: to look for cycles costs a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="tester.py", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=raw)
    parser.add_argument("--seed", type=int, default=1, help="of the random cases (default 1)")
    parser.add_argument("--random", type=_count, default=200, metavar="N", help="random cases (default 200)")
    commands = parser.add_subparsers(dest="command", metavar="verify")
    check = commands.add_parser(
        "verify",
        help="check what a pipeline has put out",
        description="Checks the committed outputs of an application against its inputs.",
        epilog=_VERIFY_EPILOG,
        formatter_class=raw,
    )
    check.add_argument("--config", type=Path, metavar="FILE", help="settings (default lsb.toml)")
    check.add_argument("--events", type=Path, metavar="FILE", help="also compare the file that was replayed")
    check.add_argument("--influx", action="store_true", help="also compare the points in InfluxDB")
    check.add_argument(
        "--timeout",
        type=_seconds,
        default=90.0,
        metavar="S",
        help="give up when a server has given nothing for so many seconds (default 90)",
    )
    check.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    check.add_argument("--examples", type=_count, default=5, metavar="N", help="shown of each kind (default 5)")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 86_400:  # noqa: PLR2004 - a day
        raise ValueError
    return number


def _run_cases(seed: int, random_count: int) -> int:
    buffer_class = load_buffer()
    outcomes = [run_case(case, buffer_class, seed) for case in built_in_cases()]
    drawn = [run_case(random_case(seed + at), buffer_class, seed + at) for at in range(random_count)]
    wrong = [outcome for outcome in drawn if outcome.differences]
    together = Outcome(f"random, seeds {seed} to {seed + random_count - 1}", sum(o.records for o in drawn))
    together.certain, together.after_end = sum(o.certain for o in drawn), sum(o.after_end for o in drawn)
    together.differences = [f"{outcome.name}: {outcome.differences[0]}" for outcome in wrong[:5]]
    outcomes += [together] if random_count else []
    outcomes.append(run_case(large_case(seed, 20_000), buffer_class, seed))
    print(render_outcomes(outcomes))
    return WRONG if any(outcome.differences for outcome in outcomes) else RIGHT


def _verify(options: argparse.Namespace) -> int:
    settings = load_settings(VerifySettings, options.config)
    for join in settings.join:
        try:
            load_function(join.function)
        except ValueError as error:
            message = f"join {join.name!r}: {error}"
            raise SettingsError(message) from error
    with KafkaEvidence(settings, stall_s=options.timeout) as evidence, _no_cycle_search():
        further: list[FurtherCheck] = []
        if options.events is not None:
            further.append(EventsCheck(options.events, settings, evidence))
        if options.influx:
            outputs = [join.output for join in settings.join]
            measurement = settings.db_connector.measurement
            further.append(PointsCheck(read_points(settings.influxdb, measurement, outputs, options.timeout)))
        findings = verify(settings, evidence, further=further, examples_max=options.examples)
    print(render_findings(findings))
    if options.json is not None:
        try:
            options.json.write_text(json.dumps(findings.as_json(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            message = f"the report cannot be written to {options.json}: {error.strerror}"
            raise SettingsError(message) from error
    return RIGHT if findings.is_right else WRONG
