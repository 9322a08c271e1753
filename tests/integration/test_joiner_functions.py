"""Faulty joining functions: each pair becomes a correct result or a dead letter, and the joiner keeps running."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.joiner_application import Application, application, seeded_entries

PROGRAM = '''\
"""Joining functions of a user."""

import sys

import numpy as np


def for_real_things(function):
    """Return a function that works for the pairs of the startup check, which would otherwise refuse it."""
    return lambda left, right: left.result if "made-up" in left.thing else function(left, right)


def raises(left, right):
    raise ValueError("no such file: \\udcff.csv " + "x" * 3_000_000)


def leaves(left, right):
    sys.exit(0)


def infinite(left, right):
    return np.where(left.result > 200, np.inf, left.result)


def undefined(left, right):
    return np.where(left.result > 200, np.nan, left.result)


@for_real_things
def too_wide(left, right):
    return np.zeros((len(left.result), 3))


@for_real_things
def too_few(left, right):
    return left.result.sum()


@for_real_things
def words(left, right):
    return [str(value) for value in left.result]


@for_real_things
def imaginary(left, right):
    return left.result + 1j


def alters(left, right):
    left.result[:] *= 2
    left.time_ns[:] = 0
    right.thing.clear()
    if (left.result > 400).any():
        raise RuntimeError("too much")
    return left.result
'''

REASONS = {
    "raises": "ValueError: no such file: \\udcff.csv",
    "leaves": "SystemExit: 0",
    "infinite": "the value is inf, not a finite number",
    "undefined": "the value is nan, not a finite number",
    "too_wide": "it returned an array of shape (1, 3) for 1 pairs",
    "too_few": "it returned an array of shape () for 1 pairs",
    "words": "values, not real numbers",
    "imaginary": "it returned complex128 values, not real numbers",
    "alters": "RuntimeError: too much",
}
PARTLY = {"infinite", "undefined", "alters"}
"""Functions that fail only for some pairs."""


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def test_whatever_a_joining_function_does_costs_only_its_own_pairs(
    app: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_program.py").write_text(PROGRAM)
    # The tester runs in this process and recomputes the results with the same functions.
    monkeypatch.syspath_prepend(str(tmp_path))
    app.power = "\n".join(
        f'[[join]]\nname = "{name}"\nleft = "speed"\nright = "torque"\nfunction = "users_program:{name}"\n'
        f'output = "{name}"'
        for name in REASONS
    )
    app.create_topics()
    app.produce(seeded_entries(70, 300))
    joiner = app.start(PYTHONPATH=str(tmp_path))
    app.wait_until_through()
    assert joiner.stop() == 0
    dead_letters = [json.loads(value) for value in app.values("rejected")]
    results = Counter(json.loads(value)["quantity"] for value in app.values("out"))
    pairs = results["mechPower"]
    for name, reason in REASONS.items():
        said = [
            dead_letter["reason"] for dead_letter in dead_letters if f"users_program:{name} " in dead_letter["reason"]
        ]
        assert len(said) + results[name] == pairs, name
        assert all(reason in one and len(one) <= 1000 for one in said)
        assert (results[name] > 0) == (name in PARTLY), name
        assert said, name
    app.verify()
