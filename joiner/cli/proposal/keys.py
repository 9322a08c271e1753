"""Finds out which field is the key of the messages, and which one identifies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.partitioner import partition_of
from broker.wire.records import NAME_LENGTH_MAX
from joiner.cli.proposal.fields import KEY_NAMES, NEARLY_ALL, SHOWN_MAX, Field, Scalar, listed
from joiner.cli.proposal.samples import Question, Sample, Source
from joiner.mapping.reading import name_in_key
from joiner.mapping.settings import KAFKA_KEY

ONLY_THING: Final = "'machine'"
"""The key of all messages of topics without one. It is the same for all topics, so that they can be joined."""

_OF_MESSAGES: Final = frozenset({"msg", "message", "event", "record", "reading", "sample", "measurement", "request"})
_CHANCE: Final = 1000
_FEW: Final = 3
"""With fewer values, it cannot be told whether they are repeated."""

_ENOUGH: Final = 5
"""With fewer messages, distinct values do not show that a field identifies them."""

_SURELY_ENOUGH: Final = 20
"""If as many messages or more all have different keys, these probably identify messages rather than things."""

_NEARLY_DISTINCT: Final = 0.98
"""The share of distinct ids, because some messages may have been delivered twice."""


class KeyGuess(NamedTuple):
    """The ``key`` of a topic's streams, and whether the topic must be repartitioned by it."""

    path: str
    repartition: bool = False


def find_key(
    source: Source, samples: Sequence[Sample], fields: Sequence[Field], given: Field | None, notes: list[str]
) -> KeyGuess:
    """Return the path of the key, `KAFKA_KEY`, or a string in quotes if the topic has one partition and no key.

    ``given``: what a person has answered. Raises `Question`.
    """
    if given is not None:
        is_right = source.is_file or _determines_partition(given, samples, source)
        return KeyGuess(given.path, repartition=not is_right)
    candidates = [
        field for field in fields if sum(map(_is_name, field.values.values())) >= NEARLY_ALL * len(field.values)
    ]
    right = [field for field in candidates if source.is_file or _determines_partition(field, samples, source)]
    if found := _recognised(source, samples, candidates, right, notes):
        return found
    if source.partitions == 1:
        notes.append("no field looks like a key, so all messages have the same one")
        return KeyGuess(ONLY_THING)
    right_first = sorted(candidates, key=lambda one: one not in right)
    message = (
        f"{source.topic}: which field is the key? Fields: {listed(right_first) or 'none'}. Answer with --key PATH or, "
        f'if all messages are of one thing, --key "{ONLY_THING}"'
    )
    raise Question(message)


def _recognised(
    source: Source, samples: Sequence[Sample], candidates: Sequence[Field], right: Sequence[Field], notes: list[str]
) -> KeyGuess | None:
    """Return the key that the names and contents of fields and the keys of messages tell, or None.

    ``right``: those of the candidates that determine the partition.
    """
    repeated = [field for field in right if not _identifies_messages(field)]
    if found := _likeliest(repeated, samples, source, notes):
        return KeyGuess(found.path)
    if note := _kafka_key_note(samples, source, is_right=True):
        notes.append(note)
        return KeyGuess(KAFKA_KEY)
    others = [field for field in candidates if field not in right]
    if found := _likeliest(others, samples, source, notes):
        notes.append(f"the messages are not partitioned by {found.path}, so the joiner copies them first (repartition)")
        notes += [
            f"their key is {field.path}, which is another one in each message: if it is the thing rather than the "
            f"message, answer with --key '{field.path}'"
            for field in right
            if _is_kafka_key(field, samples, source)
        ][:1]
        return KeyGuess(found.path, repartition=True)
    if found := _likeliest(right, samples, source, notes):
        notes.append(f"{found.path} is another one in each message: check that it is the thing, and not the message")
        return KeyGuess(found.path)
    if note := _kafka_key_note(samples, source, is_right=False):
        notes.append(f"{note}; it does not determine the partition, so the joiner copies them first (repartition)")
        return KeyGuess(KAFKA_KEY, repartition=True)
    return None


def given_key(key: str, source: Source, samples: Sequence[Sample]) -> KeyGuess:
    """Return a key that a person has given: `KAFKA_KEY`, or a string in quotes."""
    if source.is_file or source.partitions == 1:
        return KeyGuess(key)
    is_right = key == KAFKA_KEY and bool(_kafka_key_note(samples, source, is_right=True))
    return KeyGuess(key, repartition=not is_right)


def _identifies_messages(field: Field) -> bool:
    """Return whether a field seems to be another one in each message, such as the primary key of a changed row."""
    values = field.values.values()
    return len(set(values)) == len(values) >= _SURELY_ENOUGH and field.plain_name not in KEY_NAMES


def _likeliest(fields: Sequence[Field], samples: Sequence[Sample], source: Source, notes: list[str]) -> Field | None:
    """Return the field that is most likely the key, or None if none is."""
    scored = sorted(((_key_score(field, samples, source), field) for field in fields), key=lambda one: -one[0])
    likely = [field for score, field in scored if score > 0]
    if len(likely) > 1:
        notes.append("other possible keys: " + ", ".join(field.path for field in likely[1:SHOWN_MAX]))
    return likely[0] if likely else None


def find_id(candidates: Sequence[Field], key: Field | None, time: Field, documents: Sequence[Any]) -> str | None:
    """Return the path of the field that identifies messages, or None if there is none.

    A record with the same key, time and id as an earlier one is a duplicate and not joined. So no field may be taken
    for an id that different messages share. The id of a row in a change event is none: its updates share it.
    """
    for field in sorted(candidates, key=lambda one: len(one.segments)):
        if _is_named_like_id(field) and _identifies(field, key, time, documents):
            return field.path
    return None


def _is_named_like_id(field: Field) -> bool:
    *before, last = field.words
    is_id = last in {"id", "uuid", "guid"} and (not before or before[-1] in _OF_MESSAGES)
    return is_id and not field.is_about_message and "after" not in field.segments


def _identifies(field: Field, key: Field | None, time: Field, documents: Sequence[Any]) -> bool:
    values = field.values
    if len(values) < len(documents) or len(values) < _ENOUGH or not all(map(_is_name, values.values())):
        return False
    if len(set(values.values())) < _NEARLY_DISTINCT * len(values):
        return False
    known: dict[tuple[Scalar, Scalar, Scalar], Any] = {}
    for number, document in enumerate(documents):
        place = _at(key, number), time.values.get(number), values[number]
        if known.setdefault(place, document) != document:
            return False
    return True


def _at(field: Field | None, number: int) -> Scalar:
    return None if field is None else field.values.get(number)


def _determines_partition(field: Field, samples: Sequence[Sample], source: Source) -> bool:
    return source.partitions == 1 or _agree(
        field.values,
        lambda number, text: partition_of(text, source.partitions) == samples[number].partition,
    )


def _is_kafka_key(field: Field, samples: Sequence[Sample], source: Source) -> bool:
    return not source.is_file and _agree(field.values, lambda number, text: samples[number].key == text)


def _kafka_key_note(samples: Sequence[Sample], source: Source, *, is_right: bool) -> str:
    """Return a note that the keys of the messages are the things, or an empty string if they cannot be.

    ``is_right``: whether they must determine the partition.
    """
    if source.is_file:
        return ""
    keys = {number: _name_in(sample.key) for number, sample in enumerate(samples)}
    names = {number: name for number, name in keys.items() if name is not None}
    distinct = len(set(names.values()))
    is_repeated = distinct <= max(1, len(names) // 2) or len(names) < _FEW
    if len(names) < NEARLY_ALL * len(samples) or not is_repeated:
        return ""
    if is_right and not _agree(
        names, lambda number, text: partition_of(text, source.partitions) == samples[number].partition
    ):
        return ""
    return f"no field looks like a key, so the key is that of the Kafka message, such as {next(iter(names.values()))!r}"


def _name_in(key: bytes | None) -> str | None:
    try:
        name = name_in_key(key)
    except ValueError:
        return None
    # A key with a schema begins with the byte 0, which nobody wants in the name of a thing.
    return name if name.isprintable() else None


def _agree(values: Mapping[int, Scalar], is_right: Callable[[int, bytes], bool]) -> bool:
    """Return whether nearly all values that are names are right. ``is_right`` takes their number and text."""
    names = [(number, value) for number, value in values.items() if _is_name(value)]
    right = len(names)
    for number, value in names:
        right -= not is_right(number, str(value).encode())
        if right < NEARLY_ALL * len(names):
            return False  # at once, because there may be thousands of fields
    return True


def _key_score(field: Field, samples: Sequence[Sample], source: Source) -> float:
    """Return how likely a field is the key; 0 or less if it is not."""
    values = field.values
    share = len(values) / len(samples)
    if _is_kafka_key(field, samples, source):
        return 1000 * share - len(field.segments)
    distinct = len(set(values.values()))
    score = KEY_NAMES.get(field.plain_name, 0) + 10 * (field.words[-1] == "id")
    # A field that has nothing to do with the partition determines that of every value only by a rare chance.
    if not source.is_file and _determines_partition(field, samples, source):
        score += 5 * (source.partitions**distinct >= _CHANCE)
    # Values that are all different identify messages rather than things.
    is_repeated = distinct <= max(1, len(values) // 2) or len(values) < _FEW
    # A constant is the key only if no field that varies may be.
    score -= 25 * (distinct == 1 and len(values) >= _FEW)
    return (score + 5 - len(field.segments)) * share if score > 0 and is_repeated else 0


def _is_name(value: Scalar) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool) and 1 <= len(str(value)) <= NAME_LENGTH_MAX
