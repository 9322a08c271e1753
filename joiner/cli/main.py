"""The joiner's command line."""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from broker.commandline import end_on_signals, imports_of, leave, version_of

with imports_of("joiner"):
    from confluent_kafka import KafkaError, KafkaException

    from broker.kafka.replicas import REPLICA_VARIABLE, REPLICAS_MAX
    from broker.kafka.topics import TopicError
    from broker.logs import set_up_logs
    from broker.settings import SettingsError, load_settings
    from broker.times import parse_duration
    from joiner.cli.function_probe import probe_functions, probe_row_functions
    from joiner.cli.move import move
    from joiner.cli.orders import give_order
    from joiner.cli.status import show_status
    from joiner.cli.workers import run_workers, scale
    from joiner.functions import load_all
    from joiner.library.merging.protocol import REMEMBERED_MAX
    from joiner.runtime.clock import Clock, SystemClock
    from joiner.runtime.control import STANDBYS_MAX
    from joiner.runtime.kafka.clients import make_admin
    from joiner.runtime.kafka.reachability import KafkaAway, reach_kafka
    from joiner.runtime.membership.consumer_group import InstanceInUse, InstanceReplaced
    from joiner.runtime.model import UnitStopped
    from joiner.runtime.ownership.eligibility import Claimant
    from joiner.runtime.runners.workers.supervisor import (
        IN_USE_STATUS,
        is_worker,
        run_of_this_process,
        stop_with_supervisor,
    )
    from joiner.runtime.settings import (
        PROCESSES_MAX,
        SITE_PATTERN,
        SPARK,
        JoinerSettings,
        replica_settings,
    )

_REACH_S: Final = 10.0

_RUNNERS: Final = frozenset({"run", "spark"})
"""Commands that start a runner."""

_WAIT_FOR_KAFKA: Final = _RUNNERS | {"repartition", "merge"}
"""Commands that wait until Kafka answers, however long that takes."""

_REMEMBERED_LIMIT: Final = 100_000_000

_INSTANCE: Final = "name of the instance, as shown by `joiner status`"
_UNIT: Final = "number of the unit, as shown by `joiner status`"

_log = logging.getLogger(__name__)

_EXAMPLES = """\
examples:
  joiner run                              run the joins and aligns of lsb.toml until Ctrl-C
  joiner run --instance joiner-2          start a second process, which shares the units with the first
  joiner spark                            run the joins and aligns in Spark
  joiner repartition                      only copy topics that have repartition = true, beside Spark or more processes
  joiner merge                            write each result of the replicas once, to topics of its own
  joiner run --standby --site green       wait until units are moved to this site
  joiner move --to green                  move all units to a site while data flows (--units 0,3 for some)
  joiner run --replica 1                  run a second replica, for readers that cannot wait for a failover
  joiner run --processes 4                run four processes on this machine, and restart any that exit
  joiner scale 2                          change that to two processes while data flows
  joiner drain joiner-2                   hand over all units of an instance, which keeps running (--undo reverses it)
  joiner pin 3 joiner-2                   let an instance serve unit 3 whenever it can (undo: joiner pin 3 --undo)
  joiner standbys 1                       keep each unit warm on one more instance (--undo: back to the settings)
  joiner retry 3                          retry a failed unit once the cause is fixed
  joiner status                           show each unit's owner, state and lag, and the totals of joins and aligns
  joiner status --watch 5s                refresh this every 5 seconds; --json for programs
  joiner reset --yes                      delete all progress: the next start begins at application.start

An environment variable overrides the file:  LSB_KAFKA__BOOTSTRAP_SERVERS=kafka:9092 joiner run
Exit status: 0 success; 1 failure, for example because Kafka does not answer or a unit could not continue; 2 invalid
arguments or settings, or reset without --yes; 3 another process has started under the same instance name.
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command, and exit with its status."""
    options = build_parser().parse_args(arguments)
    set_up_logs(options.log_level)
    try:
        settings = _load(options)
    except SettingsError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    try:
        status = _dispatch(options, settings)
    except SettingsError as error:  # a secret's file is read when a client is created
        print(error, file=sys.stderr)
        status = 2
    except (KafkaAway, TopicError, InstanceInUse, UnitStopped) as error:
        print(f"joiner: {error}", file=sys.stderr)
        status = IN_USE_STATUS if isinstance(error, InstanceReplaced) else 1
    except KafkaException as error:
        status = _show_kafka_error(error, settings)
    except KeyboardInterrupt:  # `run` handles signals itself
        print("joiner: stopped", file=sys.stderr)
        status = 1
    leave(status)


def _show_kafka_error(error: KafkaException, settings: JoinerSettings) -> int:
    """Print the Kafka client's error. Return the exit status."""
    reason = error.args[0].str().strip()
    if error.args[0].code() == KafkaError._INVALID_ARG:  # noqa: SLF001 - the public name of the constant
        print(f"joiner: the Kafka client rejects its settings: {reason}; correct kafka.client", file=sys.stderr)
        return 2
    print(f"joiner: Kafka at {settings.kafka.bootstrap_servers}: {reason}", file=sys.stderr)
    return 1


def _dispatch(options: argparse.Namespace, settings: JoinerSettings) -> int:
    clock = SystemClock()
    if options.command not in _WAIT_FOR_KAFKA:
        reach_kafka(make_admin(settings.kafka), settings.kafka.bootstrap_servers, _REACH_S, clock)
    match options.command:
        case "status":
            status = show_status(settings, clock, as_json=options.json, every_s=options.watch)
        case "reset":
            status = _reset(settings, clock, confirmed=options.yes)
        case "move":
            status = move(settings, options.to, options.units, options.timeout, clock)
        case "drain" | "pin" | "standbys" | "retry":
            status = give_order(settings, options, clock)
        case "scale":
            status = scale(settings, options.processes, options.instance, options.timeout, clock)
        case "spark":
            status = _run_in_spark(options, settings)
        case "repartition" | "merge":
            status = _copy(options, settings, clock)
        case _ if options.processes is not None or (settings.scaling.processes is not None and not is_worker()):
            status = run_workers(settings, options, clock)
        case _:
            status = _run(options, settings, clock)
    return status


def _reset(settings: JoinerSettings, clock: Clock, *, confirmed: bool) -> int:
    with imports_of("joiner"):
        from joiner.cli.reset import reset  # noqa: PLC0415 - as in `_run`
    return reset(settings, clock, confirmed=confirmed)


def _copy(options: argparse.Namespace, settings: JoinerSettings, clock: Clock) -> int:
    with imports_of("joiner"):
        from joiner.cli.merging.command import merge  # noqa: PLC0415 - as in `_run`
        from joiner.cli.repartition import repartition  # noqa: PLC0415 - as in `_run`
    if options.command == "merge":
        return merge(settings, clock, options.remembered_max)
    return repartition(settings, clock)


def _run(options: argparse.Namespace, settings: JoinerSettings, clock: Clock) -> int:
    with imports_of("joiner"):
        # Imported here because the other commands do not need the compiled loops, which take longest to import.
        from joiner.runtime.runners.process import JoinerProcess  # noqa: PLC0415 - see above
    application = settings.application
    claimant = Claimant(run_of_this_process(), application.instance, application.site, force=options.force_claim)
    process = JoinerProcess(settings, claimant, clock, standby=options.standby)
    end_on_signals(process.stop)
    # Send a signal, because that ends even a process that hangs.
    stop_with_supervisor(lambda: os.kill(os.getpid(), signal.SIGTERM))
    return process.run()


def _run_in_spark(options: argparse.Namespace, settings: JoinerSettings) -> int:
    with imports_of("joiner", "spark"):
        # Imported here because only this command needs PySpark.
        from joiner.runtime.runners.spark.stage import SparkStage, StageFailed  # noqa: PLC0415 - see above
    claimant = Claimant(uuid.uuid4().hex, settings.application.instance, SPARK, force=options.force_claim)
    if settings.repartitioned:
        _log.info("run `joiner repartition` too, which copies %s", ", ".join(settings.repartitioned))
    running = SparkStage(settings, claimant, standby=options.standby)
    end_on_signals(running.stop)
    try:
        return running.run()
    except StageFailed as error:
        print(f"joiner: {error}", file=sys.stderr)
        return 1


def _load(options: argparse.Namespace) -> JoinerSettings:
    for name in ("instance", "site"):
        if getattr(options, name, None):
            os.environ[f"LSB_APPLICATION__{name.upper()}"] = getattr(options, name)
    settings = replica_settings(load_settings(JoinerSettings, options.config), getattr(options, "replica", 0))
    names, names_of_aligns = settings.functions
    functions, row_functions = load_all(names, names_of_aligns)
    if options.command in _RUNNERS:
        aligns = {align.name: align for align in settings.align}
        probed = [(aligns[name], function) for name, function in row_functions.items()]
        for warning in [*probe_functions(names, functions), *probe_row_functions(probed)]:
            _log.warning("%s", warning)
    return settings


def _site(text: str) -> str:
    if not re.fullmatch(SITE_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a site name: use 1 to 32 lower-case letters, digits and '-'")
    return text


class _FormerFlag(argparse.Action):
    """Accepts a flag under its former name, and prints a warning that gives the current name."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        given: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        present = f"--{self.dest.replace('_', '-')}"
        message = f"joiner: {option_string} is now called {present}; the next release will reject {option_string}"
        print(message, file=sys.stderr)
        setattr(given, self.dest, values or self.const)


def _processes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= PROCESSES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes: use 1 to {PROCESSES_MAX}")
    return int(text)


def _replica(text: str) -> int:
    if not text.isdecimal() or int(text) >= REPLICAS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a replica: use 0 to {REPLICAS_MAX - 1}")
    return int(text)


def _remembered(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _REMEMBERED_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ids: use 1 to {_REMEMBERED_LIMIT}")
    return int(text)


def _units(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        message = f"{text!r} is not a list of units: separate the unit numbers with commas, as in 0,3"
        raise argparse.ArgumentTypeError(message)
    return [int(number) for number in numbers]


def _unit(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a unit: use its number, as shown by `joiner status`")
    return int(text)


def _instance(text: str) -> str:
    if not text:
        message = "the instance name is empty: use one shown by `joiner status`"
        raise argparse.ArgumentTypeError(message)
    return text


def _standbys(text: str) -> int:
    if not text.isdecimal() or int(text) > STANDBYS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of standbys: use 0 to {STANDBYS_MAX}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text) / 1e9
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def build_parser() -> argparse.ArgumentParser:
    """Build the parser for all commands and flags."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--config", type=Path, help="settings file (default: lsb.toml)")
    shared.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="default: info"
    )
    of_replica = argparse.ArgumentParser(add_help=False)
    of_replica.add_argument(
        "--replica",
        type=_replica,
        default=os.environ.get(REPLICA_VARIABLE) or "0",
        metavar="R",
        help=f"number of the replica, if application.replicas is 2 or 3 (default: ${REPLICA_VARIABLE}, or 0)",
    )
    parser = argparse.ArgumentParser(
        prog="joiner",
        description="Joins and aligns streams by event time, from Kafka to Kafka, exactly once.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version_of("joiner"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add_command(name: str, what: str) -> argparse.ArgumentParser:
        raw = argparse.RawDescriptionHelpFormatter
        # All replicas share the copies and the merged outputs.
        parents = [shared] if name in {"repartition", "merge"} else [shared, of_replica]
        return commands.add_parser(
            name, parents=parents, help=what, description=what, epilog=_EXAMPLES, formatter_class=raw
        )

    _add_runners(add_command)
    move_parser = add_command("move", "move units to another site while data flows")
    move_parser.add_argument("--to", required=True, type=_site, help="target site; a runner must be running there")
    move_parser.add_argument("--units", type=_units, help="units to move, such as 0,3 (default: all)")
    move_parser.add_argument(
        "--timeout", type=_seconds, default="30s", help="how long to wait for the target to be ready (default: 30s)"
    )
    repartition_parser = add_command(
        "repartition", "copy topics with repartition = true until stopped, and join nothing"
    )
    repartition_parser.add_argument("--instance", help="name of this process (default: the host name)")
    _add_merge(add_command)
    _add_orders(add_command)
    _add_scale(add_command)
    status = add_command("status", "show each unit's owner, state, offsets and lag, and the totals of joins and aligns")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.add_argument(
        "--watch",
        nargs="?",
        const="2s",
        type=_seconds,
        metavar="EVERY",
        help="repeat at this interval (default: 2s) until Ctrl-C",
    )
    reset_parser = add_command("reset", "delete all of the application's progress")
    reset_parser.add_argument("--yes", action="store_true", help="confirm; without it, only show what would happen")
    return parser


def _add_merge(add_command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    merge = add_command("merge", "merge the outputs of the replicas into <topic>.merged until stopped")
    merge.add_argument("--instance", help="name of this process (default: the host name)")
    merge.add_argument(
        "--remembered-max",
        type=_remembered,
        default=REMEMBERED_MAX,
        metavar="N",
        help=f"how many ids to remember at most per partition and topic (default: {REMEMBERED_MAX})",
    )


def _add_runners(add_command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    run = add_command("run", "run the joins and aligns until stopped")
    run.add_argument("--site", help="name of the site that this process belongs to (default: process)")
    run.add_argument("--placement", dest="site", action=_FormerFlag, help=argparse.SUPPRESS)
    run.add_argument(
        "--processes", type=_processes, metavar="N", help="run N worker processes and restart any that exit"
    )
    spark = add_command("spark", "run the joins and aligns in Spark until stopped")
    for runner in (run, spark):
        runner.add_argument("--instance", help="unique name of this process (default: the host name)")
        runner.add_argument(
            "--standby",
            action="store_true",
            help="if units belong to another site, wait until they are moved to this one",
        )
        runner.add_argument(
            "--force-claim",
            action="store_true",
            help="also claim units of other sites; use it only once their runners have stopped",
        )
        runner.add_argument(
            "--take", dest="force_claim", nargs=0, const=True, action=_FormerFlag, help=argparse.SUPPRESS
        )


def _add_orders(add_command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    drain = add_command("drain", "hand over all units of an instance while data flows; the instance keeps running")
    drain.add_argument("name", metavar="INSTANCE", type=_instance, help=_INSTANCE)
    drain.add_argument("--undo", action="store_true", help="undo the drain")
    pin = add_command("pin", "let an instance serve a unit whenever it can, until undone")
    pin.add_argument("unit", metavar="UNIT", type=_unit, help=_UNIT)
    which = pin.add_mutually_exclusive_group(required=True)
    which.add_argument("name", metavar="INSTANCE", nargs="?", type=_instance, help=_INSTANCE)
    which.add_argument("--undo", action="store_true", help="let any instance serve the unit again")
    standbys = add_command("standbys", "change how many other instances keep each unit warm, while they run")
    number = standbys.add_mutually_exclusive_group(required=True)
    number.add_argument("count", metavar="N", nargs="?", type=_standbys, help=f"how many, 0 to {STANDBYS_MAX}")
    number.add_argument("--undo", action="store_true", help="return to the number in application.standbys")
    retry = add_command("retry", "retry a unit that has failed or is waiting for its next attempt")
    retry.add_argument("unit", metavar="UNIT", type=_unit, help=_UNIT)
    waits = (
        (drain, "it has no units"),
        (pin, "it serves the unit"),
        (standbys, "all are warm"),
        (retry, "it is served"),
    )
    for parser, what in waits:
        parser.add_argument("--at", type=_site, help="name of the site (default: the one in the settings)")
        parser.add_argument(
            "--timeout", type=_seconds, default="30s", help=f"how long to wait until {what} (default: 30s)"
        )


def _add_scale(add_command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    scale_parser = add_command("scale", "change the number of processes of a running `joiner run --processes`")
    scale_parser.add_argument("processes", type=_processes, metavar="N", help="how many worker processes to run")
    scale_parser.add_argument("--instance", help="name of the process that runs them (default: the only one)")
    scale_parser.add_argument("--site", help="name of its site (default: process)")
    scale_parser.add_argument(
        "--timeout", type=_seconds, default="60s", help="how long to wait until they are members (default: 60s)"
    )
