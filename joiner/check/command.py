"""The command line of the tester, which runs the built-in cases or ``verify``."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.commandline import imports_of, version_of

with imports_of("lsb-tester"):
    from confluent_kafka import KafkaException
    from pydantic import BaseModel, Field

    from broker.kafka.replicas import REPLICA_VARIABLE
    from broker.settings import InfluxdbSettings, SettingsError, load_settings
    from joiner.check.found.copy_log import CopyLog
    from joiner.check.found.evidence import EvidenceError
    from joiner.check.found.kafka_log import KafkaEvidence
    from joiner.check.model.cases import built_in_cases, large_case, random_case
    from joiner.check.model.drive import Outcome, load_buffer, run_case
    from joiner.check.report import render_findings, render_outcomes
    from joiner.check.verify.copies import CopiesCheck
    from joiner.check.verify.events import EventsCheck
    from joiner.check.verify.outputs import FurtherCheck, WrongApplicationError, verify
    from joiner.check.verify.points import PointsCheck, read_points
    from joiner.functions import load_all
    from joiner.runtime.model import UnitStopped
    from joiner.runtime.settings import JoinerSettings, replica_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RIGHT: Final = 0
WRONG: Final = 1
UNUSABLE: Final = 2

_DAY_S: Final = 86_400

_DESCRIPTION: Final = """Checks that the joiner's output is correct.

Without a command, runs built-in and seeded random cases of the join in memory and compares the engine with a
nested-loop oracle (joiner/check/model/oracle.py). Each case is split into batches in several ways, most of them with a
snapshot and restore after every step.

verify: computes the expected outputs of a pipeline from its committed inputs and compares them with the actual
outputs. Each output must exist exactly once, with the right content, and there must be no others."""

_EPILOG: Final = """examples:
  python joiner/tester.py
  python joiner/tester.py --seed 7 --random 2000
  python joiner/tester.py verify --config lsb.toml
  python joiner/tester.py verify --events events.json --influx --json report.json

exit status: 0 no difference; 1 a difference, or the check was impossible or interrupted; 2 invalid arguments or
settings"""

_VERIFY_EPILOG: Final = """The check is exact for a pipeline at rest. If the joiner runs during the check, outputs that
became due after its checkpoints were read are counted as "after", and points not yet in the database are counted as
missing.

examples:
  python joiner/tester.py verify
  python joiner/tester.py verify --config lsb.toml --events events.json
  LSB_KAFKA__BOOTSTRAP_SERVERS=127.0.0.1:19092 python joiner/tester.py verify --influx --examples 20"""


class _MeasurementSettings(BaseModel):
    """The database connector's settings that the check needs."""

    measurement: str = Field(default="joined", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,99}$")
    """The default and the pattern must match those in `db_connector`. The packages do not import each other, so a test
    compares them."""


class VerifySettings(JoinerSettings):
    """The settings of the joiner and the database."""

    influxdb: InfluxdbSettings = InfluxdbSettings()
    db_connector: _MeasurementSettings = _MeasurementSettings()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tester. Return the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        return _verify(options) if options.command == "verify" else _run_cases(options.seed, options.random)
    except (SettingsError, WrongApplicationError) as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    except EvidenceError as error:
        print(f"The check cannot run: {error}", file=sys.stderr)
        return WRONG
    except UnitStopped as error:  # a schema is not available
        print(f"The check cannot run: {error}", file=sys.stderr)
        return WRONG
    except KafkaException as error:
        print(f"The check cannot run: Kafka: {error.args[0].str()}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return WRONG


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disable cyclic garbage collection, which with millions of records would take a quarter of the run time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=_DESCRIPTION, epilog=_EPILOG, formatter_class=raw)
    parser.add_argument("--version", action="version", version=version_of("lsb-tester"))
    parser.add_argument("--seed", type=int, default=1, help="seed of the random cases (default 1)")
    parser.add_argument("--random", type=_count, default=200, metavar="N", help="number of random cases (default 200)")
    commands = parser.add_subparsers(dest="command", metavar="verify")
    check = commands.add_parser(
        "verify",
        help="check the outputs of a pipeline",
        description="Checks the committed outputs of an application against its inputs.",
        epilog=_VERIFY_EPILOG,
        formatter_class=raw,
    )
    check.add_argument("--config", type=Path, metavar="FILE", help="settings file (default lsb.toml)")
    which = check.add_mutually_exclusive_group()
    which.add_argument("--merged", action="store_true", help="check the merged outputs of all replicas")
    which.add_argument(
        "--replica",
        type=_count,
        default=os.environ.get(REPLICA_VARIABLE) or "0",
        metavar="R",
        help=f"check this replica, if application.replicas is 2 or 3 (default: ${REPLICA_VARIABLE}, or 0)",
    )
    check.add_argument("--events", type=Path, metavar="FILE", help="also check the replayed events file")
    check.add_argument("--influx", action="store_true", help="also check the points in InfluxDB")
    check.add_argument(
        "--timeout",
        type=_seconds,
        default=90.0,
        metavar="S",
        help="stop when a server has sent nothing for S seconds (default 90; Kafka must answer the first request "
        "within 20 seconds in any case)",
    )
    check.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    check.add_argument(
        "--examples", type=_count, default=5, metavar="N", help="show at most N examples of each kind (default 5)"
    )
    return parser


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        message = f"{text!r} is not a non-negative integer"
        raise argparse.ArgumentTypeError(message)
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < _DAY_S:
        message = f"{text!r} is not a number of seconds greater than 0 and less than {_DAY_S}"
        raise argparse.ArgumentTypeError(message)
    return number


def _run_cases(seed: int, random_count: int) -> int:
    buffer_class = load_buffer()
    outcomes = [run_case(case, buffer_class, seed) for case in built_in_cases()]
    drawn = [run_case(random_case(seed + at), buffer_class, seed + at) for at in range(random_count)]
    wrong = [outcome for outcome in drawn if outcome.differences]
    total = Outcome(f"random, seeds {seed} to {seed + random_count - 1}", sum(o.records for o in drawn))
    total.certain, total.after_end = sum(o.certain for o in drawn), sum(o.after_end for o in drawn)
    total.differences = [f"{outcome.name}: {outcome.differences[0]}" for outcome in wrong[:5]]
    outcomes += [total] if random_count else []
    outcomes.append(run_case(large_case(seed, 20_000), buffer_class, seed))
    print(render_outcomes(outcomes))
    return WRONG if any(outcome.differences for outcome in outcomes) else RIGHT


def _verify(options: argparse.Namespace) -> int:
    # The merged outputs are those of the application, whatever the environment says.
    replica = 0 if options.merged else options.replica
    settings = replica_settings(load_settings(VerifySettings, options.config), replica)
    load_all(*settings.functions)
    _check_files(options)
    if options.influx:
        settings.influxdb.secret()
    with (
        KafkaEvidence(settings, stall_s=options.timeout, is_merged=options.merged) as evidence,
        closing(CopyLog(settings)) as copies,
        _without_gc(),
    ):
        further: list[FurtherCheck] = [CopiesCheck(settings, copies)]
        if options.events is not None:
            further.append(EventsCheck(options.events, settings, evidence))
        if options.influx:
            outputs = [*(join.output for join in settings.join), *(align.name for align in settings.align)]
            measurement = settings.db_connector.measurement
            points = read_points(settings.influxdb, measurement, outputs, options.timeout)
            further.append(PointsCheck(points, [operator.name for operator in settings.operators]))
        findings = verify(settings, evidence, further=further, examples_max=options.examples)
    print(render_findings(findings))
    if options.json is not None:
        try:
            options.json.write_text(json.dumps(findings.as_json(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            message = f"the report cannot be written to {options.json}: {error.strerror}"
            raise SettingsError(message) from error
    return RIGHT if findings.is_right else WRONG


def _check_files(options: argparse.Namespace) -> None:
    """Raise `SettingsError` for unusable files up front, because the check may take a long time.

    The files are not opened: a pipe (``<(zcat …)``) can be opened only once, and an interrupted check would leave an
    empty report behind.
    """
    events: Path | None = options.events
    report: Path | None = options.json
    mistakes = []
    if events is not None and (events.is_dir() or not os.access(events, os.R_OK)):
        mistakes.append(f"--events: {_fault(events, 'cannot be read')}; pass the events file that was replayed")
    if report is not None:
        folder = report.absolute().parent
        if not folder.is_dir():
            mistakes.append(f"--json: there is no folder {folder}; create it, or choose another file")
        elif report.is_dir() or not os.access(report if report.exists() else folder, os.W_OK):
            mistakes.append(f"--json: {report} cannot be written; choose another file")
    if options.replica and not options.merged and (events is not None or options.influx):
        mistakes.append(
            f"--events and --influx check the whole pipeline: use them without --replica and ${REPLICA_VARIABLE}"
        )
    if mistakes:
        raise SettingsError("\n".join(mistakes))


def _fault(file: Path, otherwise: str) -> str:
    if not file.exists():
        return f"{file} does not exist"
    return f"{file} is a folder" if file.is_dir() else f"{file} {otherwise}"
