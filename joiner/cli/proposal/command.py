"""The ``lsb-init`` command."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from broker.commandline import imports_of, leave, signals_to, version_of

with imports_of("lsb-init"):
    from confluent_kafka import KafkaException
    from pydantic import ValidationError

    from broker.logs import set_up_logs
    from broker.settings import (
        KafkaSettings,
        MqttSettings,
        ServiceSettings,
        SettingsError,
        TopicSettings,
        load_settings,
    )
    from broker.times import UNIT_NS
    from joiner.cli.proposal.formats import WITHOUT_REGISTRY
    from joiner.cli.proposal.guess import Answers, TopicGuess, guess
    from joiner.cli.proposal.mqtt import Limits, Templates, check_filter, listen, mqtt_table, templates_of
    from joiner.cli.proposal.samples import Question, Registry, Source, Table, UnusableSource
    from joiner.cli.proposal.settings import PARTITIONS_MAX, compose, try_out, without_common_things
    from joiner.cli.proposal.sources import (
        SAMPLES_BYTES_MAX,
        SAMPLES_TOTAL_MAX,
        FetchedSchemas,
        Sampling,
        check_topic_name,
        kafka_tables,
        read_file,
        read_topics,
        registry_table,
    )
    from joiner.mapping.conditions import parse_literal
    from joiner.mapping.paths import parse_path
    from joiner.mapping.settings import KAFKA_KEY, KAFKA_TIMESTAMP, RegistrySettings
    from joiner.runtime.clock import SystemClock
    from joiner.runtime.kafka.batches.registry_client import RegistryClient
    from joiner.runtime.kafka.clients import describe, make_admin
    from joiner.runtime.kafka.reachability import KafkaAway, reach_kafka

NAME: Final = "lsb-init"
QUESTION: Final = 3
"""Exit status if a question must be answered first."""

_REACH_S: Final = 10.0
_SAMPLES_MAX: Final = 100_000
_LISTEN_S: Final = 10
_LISTEN_MAX_S: Final = 3600

_EXAMPLES: Final = """\
examples:
  lsb-init plant.spindle plant.lab                    propose settings for two topics, on the terminal
  lsb-init plant.all --output proposed.toml           the same for one topic with several streams, into a file
  lsb-init spindle.jsonl lab.jsonl --partitions 3     for files with a JSON message in each line
  lsb-init speed torque --registry http://host:8081   for topics with Avro or Protobuf, with the schemas there
  lsb-init --mqtt 'senml/#' --listen 60               for SenML or Sparkplug B in MQTT
  lsb-init plant.all --time '$.t' --time-unit ms      answer a question

--key, --time and --id can be repeated: the first path that the messages of a topic have applies to it.
The settings of Kafka, MQTT and the registry come from lsb.toml, if there is one, or from LSB_KAFKA__BOOTSTRAP_SERVERS,
LSB_MQTT__HOST, LSB_REGISTRY__USER, LSB_REGISTRY__PASSWORD_FILE and others. No password is written to the proposal.
Exit status: 0 the settings were written; 1 they cannot be proposed, for example because the messages are not JSON, or
the command was stopped; 2 invalid arguments or settings; 3 a question must be answered first."""


class InitSettings(ServiceSettings):
    """The settings of what is asked."""

    kafka: KafkaSettings = KafkaSettings()
    mqtt: MqttSettings = MqttSettings()
    registry: RegistrySettings = RegistrySettings()


class _Found(NamedTuple):
    """The samples of all sources, each with its topic's faults; and ``tables`` and ``notes`` to propose with them.

    ``registry``: a table to propose if any topic needs it.
    """

    sources: list[tuple[Source, list[str]]]
    tables: list[Table]
    registry: Table | None
    notes: list[str]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit."""
    leave(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status. Invalid arguments exit with status 2."""
    parser = init_arguments()
    options = parser.parse_args(arguments)
    if not options.sources and not options.mqtt:
        parser.error("name a topic, a file, or topics of MQTT with --mqtt")
    set_up_logs("warning")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # TOML is UTF-8, whatever the terminal's encoding.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        with signals_to(signal.default_int_handler):
            return _propose(options)
    except SettingsError as error:
        return _failed(str(error), 2)
    except Question as question:
        return _failed(str(question), QUESTION)
    except (UnusableSource, KafkaAway, OSError) as error:
        return _failed(str(error))
    except KafkaException as error:
        return _failed(f"Kafka: {describe(error)}")
    except KeyboardInterrupt:
        return _failed("stopped")


def _propose(options: argparse.Namespace) -> int:
    if options.output is not None and (fault := _fault_of_new(options.output)):
        return _failed(fault, 2)
    clock = SystemClock()
    found = _sources(options, clock)
    now_ns = int(clock.wall_s() * 1e9)
    answers = Answers(options.key, options.time, options.time_unit, options.id)
    topics: list[TopicGuess] = []
    for source, faults in found.sources:
        topic = guess(source, answers, now_ns)
        topics.append(topic._replace(notes=[*topic.notes, *faults]))
    if unknown := sorted(answers.paths.difference(*(topic.known for topic in topics))):
        return _failed(f"no message has a field {', '.join(unknown)}", 2)
    tables = [*found.tables]
    if found.registry is not None and any(topic.format not in WITHOUT_REGISTRY for topic in topics):
        tables.append(found.registry)
    proposal = compose(topics, tables, options.partitions or 0)
    tried = try_out(proposal, topics)
    if empty := [str(stream) for stream in tried if not stream.things]:
        return _failed("\n".join(["with these settings, no record could be read of a stream:", *empty]))
    if options.output is None:
        print(proposal.text, end="", flush=True)
    else:
        _write_new(options.output, proposal.text)
    for stream in tried:
        _say(str(stream))
    notes = [f"{topic.source.topic}: {note}" for topic in topics for note in topic.notes]
    notes += [f"{table.header}: {comment}" for table in tables for comment in table.comments]
    if not proposal.partitions:
        notes.append("files do not tell how many partitions their topics have: use --partitions N, if not 5")
    for note in [*notes, *found.notes, *without_common_things(proposal, tried)]:
        _say(f"note: {note}")
    return 0


def _fault_of_new(path: Path) -> str:
    """Return why no new file can be written there, before anybody waits for its content, or an empty string."""
    if os.path.lexists(path):
        return f"{path} already exists: choose another name for --output"
    folder = path.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return f"no file can be written to the folder {folder}: choose another one for --output"
    return ""


def _write_new(path: Path, text: str) -> None:
    """Write a new file, all of it or none. Raises OSError, also if somebody else has written the file meanwhile."""
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _sources(options: argparse.Namespace, clock: SystemClock) -> _Found:
    """Return the samples of all sources."""
    files = [name for name in options.sources if Path(name).exists() and not Path(name).is_dir()]
    names = [name for name in dict.fromkeys(options.sources) if name not in files]
    for name in names:
        check_topic_name(name)
    size = SAMPLES_TOTAL_MAX // max(1, len(files) + len(names))
    limits = Sampling(options.samples, min(size, SAMPLES_BYTES_MAX))
    found = {name: (read_file(Path(name), limits), list[str]()) for name in files}
    if files and KAFKA_TIMESTAMP in options.time:
        message = f"a file has no {KAFKA_TIMESTAMP}: name the topic, or a field with --time"
        raise UnusableSource(message)
    topics = Counter([*(source.topic for source, _ in found.values()), *names])
    if repeated := sorted(topic for topic, count in topics.items() if count > 1):
        message = f"several sources would be the topic {', '.join(repeated)}: rename the files, or leave one out"
        raise UnusableSource(message)
    if not names and not options.mqtt and options.config is None:
        return _Found([found[name] for name in dict.fromkeys(options.sources)], [], None, [])
    settings = load_settings(InitSettings, options.config)
    tables = kafka_tables(settings.kafka)
    registry = _registry(options.registry, settings.registry) if names else None
    if names:
        admin = make_admin(settings.kafka)
        reach_kafka(admin, settings.kafka.bootstrap_servers, _REACH_S, clock)
        asked = None if registry is None else _asked(registry, clock)
        read = read_topics(settings.kafka, admin, names, limits, clock, asked)
        found |= {one.topic: (one, faults) for one, faults in read}
    sources = [found[name] for name in dict.fromkeys(options.sources)]
    table = None if registry is None else registry_table(registry)
    if not options.mqtt:
        return _Found(sources, tables, table, [])
    listened = _listened(options, settings.mqtt, clock)
    if any(source.topic == listened.source.topic for source, _ in sources):
        message = f"--mqtt proposes the topic {listened.source.topic}: leave that out, or --mqtt"
        raise UnusableSource(message)
    return _Found(
        [*sources, (listened.source, [])],
        [*tables, *mqtt_table(settings.mqtt), *listened.tables],
        table,
        [*listened.notes],
    )


def _listened(options: argparse.Namespace, mqtt: MqttSettings, clock: SystemClock) -> Templates:
    begun = f"listening to MQTT at {mqtt.host}:{mqtt.port} for {options.listen} s, or {options.samples} messages"
    limits = Limits(options.samples, options.listen)
    heard = listen(mqtt, options.mqtt, limits, clock, lambda: _say(begun))
    partitions = options.partitions or TopicSettings().partitions
    return templates_of(heard, options.mqtt, mqtt.topic, int(clock.wall_s() * 1e9), partitions)


def _registry(url: str | None, given: RegistrySettings) -> RegistrySettings | None:
    """Return the settings of the registry, with the URL of the command line if there is one; None if there is none."""
    settings = given if url is None else given.model_copy(update={"url": url})
    return None if settings.url is None else settings


def _asked(settings: RegistrySettings, clock: SystemClock) -> Registry:
    url = settings.url or ""
    return Registry(url, FetchedSchemas(url, RegistryClient(settings, clock).fetch, clock))


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
    add(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help="a topic, or a file with a JSON message in each line; a file is taken before a topic of the same name",
    )
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings file with the sections [kafka], [registry] and [mqtt] (default: lsb.toml)",
    )
    add("--registry", type=_url, metavar="URL", help="the schema registry of topics with Avro, Protobuf or JSON Schema")
    add(
        "--mqtt",
        type=_filter,
        action="append",
        default=[],
        metavar="FILTER",
        help="MQTT topics with SenML or Sparkplug B, which the connector is to read; can be repeated",
    )
    listen_for = _whole(_LISTEN_MAX_S)
    add("--listen", type=listen_for, default=_LISTEN_S, metavar="S", help="seconds to listen to MQTT (default 10)")
    add("--partitions", type=_whole(PARTITIONS_MAX), metavar="N", help="how many partitions the topics are to have")
    add("--output", type=Path, metavar="FILE", help="write the settings to a new file (default: the terminal)")
    add(
        "--samples",
        type=_whole(_SAMPLES_MAX),
        default=1000,
        metavar="N",
        help="messages to look at, per source (default 1000)",
    )
    add(
        "--key",
        type=_key,
        **repeated,
        help=f"the path of the thing, such as $.machine.id, {KAFKA_KEY}, or a string in quotes",
    )
    add("--time", type=_time, **repeated, help=f"the path of the event time, or {KAFKA_TIMESTAMP}")
    add("--time-unit", choices=list(UNIT_NS), help="the unit of times that are numbers and do not tell it themselves")
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


def _url(text: str) -> str:
    try:
        return RegistrySettings(url=text).url or ""
    except ValidationError as error:
        raise argparse.ArgumentTypeError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


def _filter(text: str) -> str:
    try:
        return check_filter(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _whole(largest: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from 1 to ``largest``."""

    def parse(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(largest))
        if not (is_number and 1 <= int(text) <= largest):
            message = f"must be a whole number from 1 to {largest}, not {text!r:.60}"
            raise argparse.ArgumentTypeError(message)
        return int(text)

    return parse
