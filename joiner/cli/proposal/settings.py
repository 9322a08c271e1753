"""Composes the proposed settings, and tries them on the messages that they were derived from."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from broker.partitioner import partition_of
from broker.settings import SettingsError
from broker.times import iso_text
from broker.wire.records import NAME_LENGTH_MAX, Record, Unreadable, decode_data
from broker.wire.start_records import read_start
from joiner.cli.proposal.guess import TopicGuess
from joiner.cli.proposal.samples import Sample, Simple, Table, UnusableSource
from joiner.cli.proposal.values import StreamGuess, numbered
from joiner.mapping.conditions import parse_literal
from joiner.mapping.formats import JSON
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import StreamSettings
from joiner.runtime.settings import JoinerSettings

JOINS_MAX: Final = 5
"""The maximum number of joins that are proposed. Streams without a join are proposed as comments."""

PARTITIONS_MAX: Final = 1000
"""The largest number of partitions that the settings allow (`broker.settings.TopicSettings`)."""

_COMMENT_LENGTH_MAX: Final = 400
_BARE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_JOIN_NAME_LENGTH_MAX: Final = 80
_LABEL_LENGTH_MAX: Final = NAME_LENGTH_MAX - 10
"""So short that a number can follow."""

_THINGS_SHOWN: Final = 3


class Placed(NamedTuple):
    """A stream and its topic.

    ``label``: a name that no other stream has. ``name``: the same, or the quantity of records of the pipeline's own
    form.
    """

    label: str
    name: str
    topic: TopicGuess
    stream: StreamGuess

    def settings(self) -> dict[str, str]:
        """Return the settings of its ``[[stream]]``, without those that are not needed."""
        topic, stream = self.topic, self.stream
        found = {
            "name": self.name,
            "topic": topic.source.topic,
            "format": None if topic.format == JSON else topic.format,
            "key": topic.key,
            "time": stream.time or topic.time,
            "time_unit": stream.time_unit if stream.time else topic.time_unit,
            "value": stream.value,
            "id": topic.id,
            "where": stream.where,
        }
        return {name: value for name, value in found.items() if value is not None}


class Proposal(NamedTuple):
    """Proposed settings as TOML, the streams in them, and the labels of the two streams of each join.

    ``partitions``: the number of partitions in them, or 0 if it is not known.
    """

    text: str
    streams: Sequence[Placed]
    joins: Sequence[tuple[str, str]]
    partitions: int


class _Proposed(JoinerSettings):
    """The settings of the joiner, without environment variables."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is given
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return only what is given to the constructor."""
        return (init_settings,)


class Tried(NamedTuple):
    """What a stream has in the sampled messages.

    ``messages``: how many were looked at. ``things``: how many records each thing has. ``first_ns`` and ``last_ns``:
    the range of the times, which is meaningless without records. ``rejected``: how many messages of the topic would
    become dead letters, the first one for the reason ``why``.
    """

    name: str
    topic: str
    messages: int
    things: dict[str, int]
    first_ns: int
    last_ns: int
    rejected: int
    why: str

    def __str__(self) -> str:
        """Describe it in one line."""
        records = sum(self.things.values())
        shown = ", ".join(sorted(self.things, key=lambda one: -self.things[one])[:_THINGS_SHOWN])
        found = f"{records} records in {self.messages} messages"
        if records:
            things = f"{len(self.things)} things" if len(self.things) > 1 else "1 thing"
            found += f", {things} ({shown}), {iso_text(self.first_ns)} to {iso_text(self.last_ns)}"
        rejected = f"; {self.rejected} messages of the topic would be rejected: {self.why}" if self.rejected else ""
        return f"{self.name} ({self.topic}): {found}{rejected}"


def compose(topics: Sequence[TopicGuess], tables: Sequence[Table] = (), partitions: int = 0) -> Proposal:
    """Propose settings. ``tables``: those that come first. ``partitions``: a given number of partitions, or 0.

    Raises `UnusableSource` if there are not two streams, or if topics of the pipeline's own records have different
    numbers of partitions. Other topics are repartitioned.
    """
    topics, partitions = _with_equal_partitions(topics, partitions)
    if not partitions and any(parse_literal(topic.key) is not None for topic in topics):
        partitions = 1  # the messages of such a topic have the same key
    units = {topic.time_unit for topic in topics if topic.is_own and topic.time_unit}
    if len(units) > 1:
        message = f"records of the pipeline's own form must have times in one unit, not in {', '.join(sorted(units))}"
        raise UnusableSource(message)
    streams = [*_placed(topics)]
    if len(streams) < 2:  # noqa: PLR2004 - a join has two sides
        found = ", ".join(f"{one.name} in {one.topic.source.topic}" for one in streams)
        message = f"there is only one stream to join ({found}): name another topic or file"
        raise UnusableSource(message)
    own = next((topic for topic in topics if topic.is_own), None)
    lines = [
        "# Proposed by lsb-init: check it before you use it. Of records with the same key, time and id, only the first",
        "# is joined. Joins of values from the same message are rarely useful: remove those that you do not need.",
        "",
    ]
    for table in tables:
        lines += [*_table(table), ""]
    lines += [*_topics(topics, own, partitions), ""]
    if own is not None and units:
        example = f"# A time, for example, is {_comment(own.example)}"
        lines += [example, "[events]", f"time_unit = {_toml(*units)}", ""]
    left, *others = streams
    # Streams in other messages come first: those in the same message have the same time.
    others.sort(key=lambda one: (one.topic is left.topic, one.stream.where == left.stream.where))
    joined, rest = others[:JOINS_MAX], others[JOINS_MAX:]
    for topic in topics:
        lines += [*_sections(topic, [one for one in streams if one.topic is topic], rest)]
    names: set[str] = set()
    for right in joined:
        lines += [*_join(left, right, own, names)]
    text = "\n".join(lines).rstrip("\n") + "\n"
    return Proposal(text, [left, *joined], [(left.label, right.label) for right in joined], partitions)


def _with_equal_partitions(topics: Sequence[TopicGuess], given: int) -> tuple[list[TopicGuess], int]:
    """Return the topics, some of which must be repartitioned, and the number of partitions (0: not known).

    ``given``: the number that a person wants, or 0.

    Raises `UnusableSource` if topics that cannot be repartitioned have different numbers of partitions.
    """
    known = [topic for topic in topics if not topic.source.is_file]
    own = {topic.source.partitions for topic in known if topic.is_own}
    if own and given and own != {given}:
        message = f"a topic of the pipeline's own records has {max(own)} partitions, so there cannot be {given}"
        raise UnusableSource(message)
    if len(own) > 1:
        counts = ", ".join(f"{topic.source.topic} has {topic.source.partitions}" for topic in known if topic.is_own)
        message = f"the topics have different numbers of partitions, so the joiner cannot read them together: {counts}"
        raise UnusableSource(message)
    right = own or {topic.source.partitions for topic in known if not topic.repartition}
    partitions = given or max(right or {topic.source.partitions for topic in known}, default=0)
    partitions = partitions if own else min(partitions, PARTITIONS_MAX)
    found = []
    for topic in topics:
        count = topic.source.partitions
        is_one_thing = topic.source.is_file and partitions > 1 and parse_literal(topic.key) is not None
        if topic.repartition or (count in {0, partitions} and not is_one_thing):
            found.append(topic)
            continue
        note = f"it has {count} partitions instead of {partitions}, so the joiner copies it first (repartition)"
        if is_one_thing:
            note = "its messages have the same key, but may be in any partition, so the joiner copies it first"
        found.append(topic._replace(notes=[*topic.notes, note], repartition=True))
    return found, partitions


def _placed(topics: Sequence[TopicGuess]) -> Iterator[Placed]:
    names = Counter(stream.name for topic in topics for stream in topic.streams)
    # A join would select such a quantity instead of a stream of the same name.
    used = {stream.name for topic in topics if topic.is_own for stream in topic.streams}
    for topic in topics:
        for stream in topic.streams:
            label = f"{topic.source.topic}.{stream.name}" if names[stream.name] > 1 else stream.name
            label = label[-_LABEL_LENGTH_MAX:]
            if label in used and not (topic.is_own and label == stream.name):
                label = next(one for one in numbered(label) if one not in used)
            used.add(label)
            yield Placed(label, stream.name if topic.is_own else label, topic, stream)


def _topics(topics: Sequence[TopicGuess], own: TopicGuess | None, partitions: int) -> Iterator[str]:
    yield "[topics]"
    if own is not None:
        yield f"data = {_toml(own.source.topic)}"
    elif any(topic.source.topic == "machine.data" for topic in topics):
        yield 'data = "lsb.data"  # not used, but the default is the topic of a stream'
    if partitions:
        yield f"partitions = {partitions}"
    else:
        yield "# Files do not tell how many partitions their topics have: set partitions, or use --partitions."


def _sections(topic: TopicGuess, streams: Sequence[Placed], rest: Sequence[Placed]) -> Iterator[str]:
    yield f"# {topic.source.topic}: a time, for example, is {_comment(topic.example)}"
    for note in topic.notes:
        yield f"# {topic.source.topic}: {_comment(note)}"
    if topic.is_own:
        yield f"# {topic.source.topic}: records of the pipeline's own form need no [[stream]]."
        yield ""
        return
    for placed in streams:
        prefix = "# " if placed in rest else ""
        if placed.stream.example:
            yield f"# A time of this value, for example, is {_comment(placed.stream.example)}"
        yield f"{prefix}[[stream]]"
        for name, value in placed.settings().items():
            yield f"{prefix}{name} = {_toml(value)}"
        if topic.repartition:
            yield f"{prefix}repartition = true"
        yield ""


def _join(left: Placed, right: Placed, own: TopicGuess | None, names: set[str]) -> Iterator[str]:
    """Yield the lines of a join. ``names``: those of the joins so far, to which the new one is added."""
    output = f"{left.label}_{right.label}"
    plain = name = _NO_NAME.sub("_", output)[:_JOIN_NAME_LENGTH_MAX].strip("_.-") or "join"
    while name in names:
        name = f"{plain}_{len(names) + 1}"
    names.add(name)
    yield "[[join]]"
    yield f"name = {_toml(name)}"
    for side, stream in (("left", left), ("right", right)):
        if stream.topic.is_own and stream.topic is not own:
            where = f"topic = {_toml(stream.topic.source.topic)}, quantity = {_toml(stream.name)}"
            yield f"{side} = {{ {where} }}"
        else:
            yield f"{side} = {_toml(stream.name)}"
    yield 'function = "both"'
    yield f"output = {_toml(output if len(output) <= NAME_LENGTH_MAX else name)}"
    yield ""


def _table(table: Table) -> Iterator[str]:
    yield from (f"# {_comment(comment)}" for comment in table.comments)
    yield table.header
    for name, value in table.values.items():
        yield f"{name if _BARE_NAME.fullmatch(name) else _toml(name)} = {_toml(value)}"


def _toml(value: Simple) -> str:
    """Return a value in TOML. Raises `UnusableSource` if it cannot be written.

    TOML's basic strings are JSON's, except that more must be escaped. So is what could control the terminal.
    """
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value)  # as in TOML, also if it is not finite
    if not value.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in value):
        message = f"the setting {value!a} is not UTF-8, so it cannot be written to a settings file"
        raise UnusableSource(message)
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)


def _comment(text: str) -> str:
    """Return text that fits into a comment."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:_COMMENT_LENGTH_MAX]


def try_out(proposal: Proposal, topics: Sequence[TopicGuess]) -> list[Tried]:
    """Load proposed settings, and read the sampled messages as the joiner would. Return what each stream has.

    Raises `broker.settings.SettingsError` if the settings are invalid, such as if a topic has the name of a topic for
    results. Environment variables do not change them.
    """
    try:
        settings = _Proposed(**tomllib.loads(proposal.text))
    except ValidationError as error:
        faults = "; ".join(found["msg"].removeprefix("Value error, ") for found in error.errors())
        message = f"the proposed settings would not be accepted: {faults}"
        raise SettingsError(message) from error
    unit = settings.events.time_unit
    tried: list[Tried] = []
    for topic in topics:
        if topic.is_own:
            tried += _own_streams(topic, [one for one in proposal.streams if one.topic is topic], unit)
        else:
            streams = [one for one in settings.stream if one.topic == topic.source.topic]
            tried += _mapped_streams(topic, streams, unit)
    return tried


def without_common_things(proposal: Proposal, tried: Sequence[Tried]) -> list[str]:
    """Return a warning for each proposed join whose streams have no thing in common."""
    things = {one.name: one.things.keys() for one in tried}
    return [
        f"{left} and {right} have no thing in common, so nothing would be joined: check their keys"
        for left, right in proposal.joins
        if not things[left] & things[right]
    ]


def _mapped_streams(topic: TopicGuess, streams: Sequence[StreamSettings], unit: str) -> Iterator[Tried]:
    registry = topic.source.registry
    mapped = MappedTopic(streams, unit, None if registry is None else registry.schemas)
    is_copied = any(stream.repartition for stream in streams)
    records: list[tuple[str, str, int]] = []
    rejected, why = 0, ""
    for sample in topic.source.samples:
        try:
            found = mapped.read(sample.value, sample.offset, sample.append_ms, sample.key)
            for one in found:
                _check_partition(one.record.thing, sample, 0 if is_copied else topic.source.partitions)
        except Unreadable as error:
            rejected, why = rejected + 1, why or str(error)
            continue
        records += [(one.record.quantity, one.record.thing, one.ts_ns) for one in found]
    for stream in streams:
        yield _tried(topic, stream.name, [one[1:] for one in records if one[0] == stream.name], (rejected, why))


def _own_streams(topic: TopicGuess, streams: Sequence[Placed], unit: str) -> Iterator[Tried]:
    records: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    rejected, why = 0, ""
    for sample in topic.source.samples:
        if read_start(sample.value) is not None:
            continue
        try:
            found, ts_ns = decode_data(sample.value, unit)
            if isinstance(found, Record):
                _check_partition(found.thing, sample, topic.source.partitions)
                records[found.quantity].append((found.thing, ts_ns))
        except Unreadable as error:
            rejected, why = rejected + 1, why or str(error)
    for stream in streams:
        yield _tried(topic, stream.label, records[stream.name], (rejected, why))


def _check_partition(thing: str, sample: Sample, partitions: int) -> None:
    """Raise `Unreadable`, as the joiner would, if a topic's message is not in the partition of its thing."""
    if partitions and (right := partition_of(thing.encode(), partitions)) != sample.partition:
        message = f"{thing!r} belongs in partition {right}, not {sample.partition}"
        raise Unreadable(message)


def _tried(topic: TopicGuess, name: str, records: Sequence[tuple[str, int]], bad: tuple[int, str]) -> Tried:
    things = Counter(thing for thing, _ in records)
    times = [ts_ns for _, ts_ns in records] or [0]
    return Tried(name, topic.source.topic, len(topic.source.samples), dict(things), min(times), max(times), *bad)
