"""Keeps what was observed in files, so that it can be analysed again, and is not lost if the analysis fails.

A part of the measurement has a JSON file with its facts and, if it has results, a file of numpy arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.harness.report import json_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Output(NamedTuple):
    """The results in a topic: when the later record of each was due, in ns, and when it was appended, in ms.

    Both are int64 arrays of shape (n,), in ms or ns since the epoch. No two records are due at the same time, so the
    due time identifies the result.
    """

    due_ns: Ints
    appended_ms: Ints


class Observed(NamedTuple):
    """What was observed in a part of the measurement: facts, and the results by output."""

    facts: dict[str, Any]
    outputs: dict[str, Output]


def save_facts(folder: Path, part: str, facts: Mapping[str, Any]) -> None:
    """Write the facts of a part. Earlier ones are replaced, all or none of them."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{part}.json"
    draft.write_text(json_text(dict(facts)) + "\n")
    draft.replace(folder / f"{part}.json")


def save_outputs(folder: Path, part: str, outputs: Mapping[str, Output]) -> None:
    """Write the results of a part."""
    arrays: dict[str, Any] = {
        f"{name}/{field}": value for name, one in outputs.items() for field, value in one._asdict().items()
    }
    draft = folder / f".{part}.npz"
    np.savez_compressed(draft, **arrays)
    draft.replace(folder / f"{part}.npz")


def load(folder: Path, part: str) -> Observed | None:
    """Return what was observed in a part, or None if nothing was."""
    path = folder / f"{part}.json"
    if not path.is_file():
        return None
    outputs: dict[str, Output] = {}
    if path.with_suffix(".npz").is_file():
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
            names = dict.fromkeys(key.partition("/")[0] for key in arrays.files)
            outputs = {name: Output(*(arrays[f"{name}/{field}"] for field in Output._fields)) for name in names}
    return Observed(json.loads(path.read_text()), outputs)


def forget(folder: Path, part: str) -> None:
    """Delete what was observed in a part."""
    for suffix in ("json", "npz"):
        (folder / f"{part}.{suffix}").unlink(missing_ok=True)
