"""The command line of the joiner."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import uuid
from pathlib import Path

from confluent_kafka import KafkaException

from broker.settings import SettingsError, load_settings
from broker.topics import TopicError
from joiner.functions import load_function
from joiner.run.ending import end_on_signals, leave
from joiner.run.membership import InstanceTaken
from joiner.run.process import JoinerProcess
from joiner.run.recovery import Claimant
from joiner.run.reset import reset
from joiner.run.settings import JoinerSettings
from joiner.run.status import show_status
from joiner.run.unit import UnitStopped

_EXAMPLES = """\
examples:
  joiner run                              join as lsb.toml says, until Ctrl-C
  joiner run --instance joiner-2          a second process, which shares the units with the first
  joiner status                           units, owners, offsets, lag, records held, frontiers
  joiner reset --yes                      forget all progress: the next start begins anew

An environment variable goes before the file:  LSB_KAFKA__BOOTSTRAP_SERVERS=kafka:9092 joiner run
Exit status: 0 fine, 1 a unit could not go on, 2 wrong usage or settings.
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if Path.cwd() not in map(Path, sys.path):
        sys.path.append(str(Path.cwd()))  # where a joining function of one's own is likely to lie
    try:
        settings = _load(options)
    except SettingsError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    try:
        status = _dispatch(options, settings)
    except SettingsError as error:  # a secret's file is read when a client is made
        print(error, file=sys.stderr)
        status = 2
    except (TopicError, InstanceTaken, UnitStopped) as error:
        print(f"joiner: {error}", file=sys.stderr)
        status = 1
    except KafkaException as error:
        print(f"joiner: Kafka at {settings.kafka.bootstrap_servers}: {error.args[0].str()}", file=sys.stderr)
        status = 1
    leave(status)


def _dispatch(options: argparse.Namespace, settings: JoinerSettings) -> int:
    if options.command == "status":
        return show_status(settings)
    if options.command == "reset":
        return reset(settings, confirmed=options.yes)
    claimant = Claimant(uuid.uuid4().hex, settings.application.instance, take=options.take)
    process = JoinerProcess(settings, claimant)
    end_on_signals(process.stop)
    return process.run()


def _load(options: argparse.Namespace) -> JoinerSettings:
    if getattr(options, "instance", None):
        os.environ["LSB_APPLICATION__INSTANCE"] = options.instance
    settings = load_settings(JoinerSettings, options.config)
    mistakes = []
    for join in settings.join:
        try:
            load_function(join.function)
        except ValueError as error:
            mistakes.append(f"join {join.name!r}: {error}")
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return settings


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--config", type=Path, help="settings file (default: lsb.toml)")
    shared.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="default: info"
    )
    parser = argparse.ArgumentParser(
        prog="joiner",
        description="Joins each record with its neighbours in the other stream, Kafka to Kafka, exactly once.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add_command(name: str, what: str) -> argparse.ArgumentParser:
        raw = argparse.RawDescriptionHelpFormatter
        return commands.add_parser(
            name, parents=[shared], help=what, description=what, epilog=_EXAMPLES, formatter_class=raw
        )

    run = add_command("run", "join until stopped")
    run.add_argument("--instance", help="name of this process, its own for each (default: the host's name)")
    run.add_argument("--take", action="store_true", help="take units that another kind of runner owns")
    add_command("status", "show units, owners, offsets, lag, records held")
    again = add_command("reset", "forget all progress of the application")
    again.add_argument("--yes", action="store_true", help="do it; without it, only what would happen is shown")
    return parser
