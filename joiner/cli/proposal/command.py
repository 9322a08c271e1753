"""The ``lsb-init`` command."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from broker.commandline import imports_of, leave, version_of

with imports_of("lsb-init"):
    from confluent_kafka import KafkaException

    from broker.logs import set_up_logs
    from broker.settings import KafkaSettings, ServiceSettings, SettingsError, load_settings
    from broker.times import UNIT_NS
    from joiner.cli.proposal.guess import Answers, TopicGuess, guess
    from joiner.cli.proposal.samples import Question, Source, UnusableSource
    from joiner.cli.proposal.settings import compose, try_out, without_common_things
    from joiner.cli.proposal.sources import check_topic_name, read_file, read_topics
    from joiner.mapping.conditions import parse_literal
    from joiner.mapping.paths import parse_path
    from joiner.mapping.settings import KAFKA_KEY, KAFKA_TIMESTAMP
    from joiner.runtime.clock import SystemClock
    from joiner.runtime.kafka.clients import make_admin
    from joiner.runtime.kafka.reachability import KafkaAway, reach_kafka

NAME: Final = "lsb-init"
QUESTION: Final = 3
"""Exit status if a question must be answered first."""

_REACH_S: Final = 10.0
_SAMPLES_MAX: Final = 100_000

_EXAMPLES: Final = """\
examples:
  lsb-init plant.spindle plant.lab                    propose settings for two topics, on the terminal
  lsb-init plant.all --output proposed.toml           the same for one topic with several streams, into a file
  lsb-init spindle.jsonl lab.jsonl                    for files with a JSON message in each line
  lsb-init plant.all --time '$.t' --time-unit ms      answer a question

--key, --time and --id can be repeated: the first path that the messages of a topic have applies to it.
The settings of Kafka come from lsb.toml, if there is one, or from LSB_KAFKA__BOOTSTRAP_SERVERS and others.
Exit status: 0 the settings were written; 1 they cannot be proposed, for example because the messages are not JSON; 2
invalid arguments or settings; 3 a question must be answered first."""


class InitSettings(ServiceSettings):
    """The settings of Kafka."""

    kafka: KafkaSettings = KafkaSettings()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit."""
    leave(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status. Invalid arguments exit with status 2."""
    options = init_arguments().parse_args(arguments)
    set_up_logs("warning")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # TOML is UTF-8, whatever the terminal's encoding.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        return _propose(options)
    except SettingsError as error:
        return _failed(str(error), 2)
    except Question as question:
        return _failed(str(question), QUESTION)
    except (UnusableSource, KafkaAway, OSError) as error:
        return _failed(str(error))
    except KafkaException as error:
        return _failed(f"Kafka: {error.args[0].str()}")
    except KeyboardInterrupt:
        return _failed("stopped")


def _propose(options: argparse.Namespace) -> int:
    if options.output is not None and options.output.exists():
        return _failed(f"{options.output} already exists: choose another name for --output", 2)
    clock = SystemClock()
    sources, servers = _sources(options, clock)
    now_ns = int(clock.wall_s() * 1e9)
    answers = Answers(options.key, options.time, options.time_unit, options.id)
    topics: list[TopicGuess] = []
    for source, faults in sources:
        topic = guess(source, answers, now_ns)
        topics.append(topic._replace(notes=[*topic.notes, *faults]))
    if unknown := sorted(answers.paths.difference(*(topic.known for topic in topics))):
        return _failed(f"no message has a field {', '.join(unknown)}", 2)
    proposal = compose(topics, servers)
    tried = try_out(proposal, topics)
    if empty := [str(stream) for stream in tried if not stream.things]:
        return _failed("\n".join(["with these settings, no record could be read of a stream:", *empty]))
    if options.output is None:
        print(proposal.text, end="", flush=True)
    else:
        options.output.write_text(proposal.text, encoding="utf-8")
    for stream in tried:
        _say(str(stream))
    notes = [f"{topic.source.topic}: {note}" for topic in topics for note in topic.notes]
    if servers is not None:
        notes.append("add your other settings of Kafka, if any, to the section [kafka]")
    for note in [*notes, *without_common_things(proposal, tried)]:
        _say(f"note: {note}")
    return 0


def _sources(options: argparse.Namespace, clock: SystemClock) -> tuple[list[tuple[Source, list[str]]], str | None]:
    """Return the samples of all sources, each with its topic's faults, and Kafka's address if it is not the default."""
    files = [name for name in options.sources if Path(name).exists() and not Path(name).is_dir()]
    names = [name for name in options.sources if name not in files]
    for name in names:
        check_topic_name(name)
    found = {name: (read_file(Path(name), options.samples), list[str]()) for name in files}
    if files and KAFKA_TIMESTAMP in options.time:
        message = f"a file has no {KAFKA_TIMESTAMP}: name the topic, or a field with --time"
        raise UnusableSource(message)
    topics = [source.topic for source, _ in found.values()]
    if repeated := sorted({topic for topic in topics if topics.count(topic) > 1}):
        message = f"several files would be the topic {', '.join(repeated)}: rename them"
        raise UnusableSource(message)
    servers = None
    if names:
        kafka = load_settings(InitSettings, options.config).kafka
        if kafka.bootstrap_servers != KafkaSettings().bootstrap_servers:
            servers = kafka.bootstrap_servers
        admin = make_admin(kafka)
        reach_kafka(admin, kafka.bootstrap_servers, _REACH_S, clock)
        found |= {one.topic: (one, faults) for one, faults in read_topics(kafka, admin, names, options.samples, clock)}
    return [found[name] for name in dict.fromkeys(options.sources)], servers


def _say(text: str) -> None:
    """Print a line to standard error. What is in messages cannot control the terminal."""
    print(f"{NAME}: {''.join(one if one.isprintable() else '?' for one in text)}", file=sys.stderr)


def _failed(text: str, status: int = 1) -> int:
    for line in text.splitlines():
        _say(line)
    return status


def init_arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="Look at the messages of topics or files, and propose settings that join them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    repeated: dict[str, Any] = {"action": "append", "default": [], "metavar": "PATH"}
    add("sources", nargs="+", metavar="SOURCE", help="a topic, or a file with a JSON message in each line")
    add("--config", type=Path, metavar="FILE", help="settings file with the section [kafka] (default: lsb.toml)")
    add("--output", type=Path, metavar="FILE", help="write the settings to a new file (default: the terminal)")
    add("--samples", type=_count, default=1000, metavar="N", help="messages to look at, per source (default 1000)")
    add(
        "--key",
        type=_key,
        **repeated,
        help=f"the path of the thing, such as $.machine.id, {KAFKA_KEY}, or a string in quotes",
    )
    add("--time", type=_time, **repeated, help=f"the path of the event time, or {KAFKA_TIMESTAMP}")
    add("--time-unit", choices=list(UNIT_NS), help="the unit of times that are numbers")
    add("--id", type=_path, **repeated, help="the path of the identity of a message")
    add("--version", action="version", version=version_of(NAME))
    return parser


def _path(text: str) -> str:
    try:
        parse_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _key(text: str) -> str:
    try:
        return text if text == KAFKA_KEY or parse_literal(text) is not None else _path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _time(text: str) -> str:
    return text if text == KAFKA_TIMESTAMP else _path(text)


def _count(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_SAMPLES_MAX))
    if not (is_number and 1 <= int(text) <= _SAMPLES_MAX):
        message = f"must be a whole number from 1 to {_SAMPLES_MAX}, not {text!r:.60}"
        raise argparse.ArgumentTypeError(message)
    return int(text)
