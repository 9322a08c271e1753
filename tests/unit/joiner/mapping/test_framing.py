"""Is what is made from schemas kept within limits?"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from joiner.mapping.avro import schema as avro
from joiner.mapping.avro.schema import parse_schema
from joiner.mapping.framing import SizedCache
from joiner.mapping.protobuf import messages as protobuf
from joiner.mapping.protobuf.messages import find_reader
from tests.property.protobuf_data import descriptors_of, file_of


def kept(cache: SizedCache[Any], keys: str) -> str:
    return "".join(key for key in keys if cache.get(key) is not None)


def test_the_oldest_values_are_forgotten_if_there_are_too_many() -> None:
    cache: SizedCache[int] = SizedCache(100, 2)
    for key in "abc":
        assert cache.put(key, ord(key)) == ord(key)
    assert kept(cache, "abc") == "bc"


def test_the_oldest_values_are_forgotten_if_they_are_too_large() -> None:
    cache: SizedCache[str] = SizedCache(10, 100)
    for key, size in (("a", 4), ("b", 4), ("c", 2), ("d", 5)):
        cache.put(key, key, size)
    assert kept(cache, "abcd") == "cd"
    # One that is too large is kept until there is another one.
    cache.put("e", "e", 11)
    assert kept(cache, "abcde") == "e"
    cache.put("f", "f", 10)
    assert kept(cache, "abcdef") == "f"


def test_a_value_that_is_replaced_counts_once() -> None:
    cache: SizedCache[int] = SizedCache(10, 100)
    cache.put("b", 0, 4)
    for value in range(5):
        cache.put("a", value, 6)
    assert (cache.get("a"), cache.get("b")) == (4, 0)


def test_threads_do_not_lose_count() -> None:
    cache: SizedCache[int] = SizedCache(50, 1_000)

    def fill(first: int) -> None:
        for number in range(2_000):
            cache.put((first + number) % 97, number, 1 + number % 3)

    threads = [threading.Thread(target=fill, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.put("last", 0, 50)
    assert [key for key in range(97) if cache.get(key) is not None] == []
    cache.put("nothing", 0, 0)
    assert cache.get("last") == 0


def record(name: str, fields: int) -> str:
    inside = [{"name": f"f{number}", "type": "int"} for number in range(fields)]
    return json.dumps({"type": "record", "name": name, "fields": inside})


def test_large_avro_schemas_are_not_kept_in_large_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "_schemas", SizedCache(150_000, 100))
    small, large = record("S", 3), [record(f"L{number}", 100) for number in range(3)]
    first = parse_schema(small)
    assert parse_schema(small) is first
    for text in large:
        parse_schema(text)
    assert parse_schema(small) is not first
    assert parse_schema(large[-1]) is parse_schema(large[-1])


def test_large_protobuf_schemas_are_not_kept_in_large_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def described(name: str) -> bytes:
        file = file_of()
        file.message_type.add(name=name)
        return descriptors_of(file)

    small, large = described("S"), [described(f"{number}{'L' * 1_000}") for number in "abc"]
    monkeypatch.setattr(protobuf, "_schemas", SizedCache(2_500, 100))
    first = find_reader(small, (0,))
    assert find_reader(small, (0,)) is first
    for descriptors in large:
        find_reader(descriptors, (0,))
    assert find_reader(small, (0,)) is not first
