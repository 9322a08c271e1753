"""The rules of the union of replicas, each broken once, and the union with a broken rule."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tests.property.mutation import Mutation

PROTOCOL: Final = "protocol.py"
MEMORY: Final = "memory.py"
REPLICA: Final = "replica.py"
PACKAGE: Final = "joiner/library/merging"

MERGING_MUTATIONS: Final = tuple(
    Mutation(rule, file, before, after, PACKAGE)
    for rule, file, before, after in (
        (
            "a replica stays accepted although what it has not passed is forgotten",
            PROTOCOL,
            "if one.is_accepted and not reached(one.start, self._floor):\n                one.ignore()",
            "pass",
        ),
        (
            "a replica is accepted before it has reached the floor",
            PROTOCOL,
            "return is_known and reads_the_same(one, self._replicas) and reached(one.start, self._floor)",
            "return is_known and reads_the_same(one, self._replicas)",
        ),
        (
            "a replica is accepted while another one has forgotten ids of its transaction",
            PROTOCOL,
            "bool(one.start) and not any(other.has_forgotten for other in self._replicas)",
            "bool(one.start)",
        ),
        (
            "a replica is accepted at an empty vector",
            PROTOCOL,
            "is_known = bool(one.start) and not any(",
            "is_known = not any(",
        ),
        (
            "a replica counts as complete as soon as it is accepted",
            PROTOCOL,
            "one.accepted_at = True, False, one.start",
            "one.accepted_at = True, True, one.start",
        ),
        (
            "a replica stays complete although it is ignored",
            REPLICA,
            "self.is_accepted = self.is_complete = self.has_forgotten = False",
            "self.is_accepted = self.has_forgotten = False",
        ),
        (
            "the last complete replica is ignored",
            REPLICA,
            "combinations(accepted, count) if any(one.is_complete for one in kept)]",
            "combinations(accepted, count)]",
        ),
        (
            "the results of a replica that is not accepted are delivered",
            PROTOCOL,
            "        if not one.is_accepted:\n            return Verdict.IGNORED\n        if one.has_forgotten:",
            "        if one.has_forgotten:",
        ),
        (
            "a vector that goes back is not noticed",
            REPLICA,
            "return not continues or (self.has_written and start == self.start)",
            "return self.has_written and start == self.start",
        ),
        (
            "a transaction that begins again at the same vector is not noticed",
            REPLICA,
            "return not continues or (self.has_written and start == self.start)",
            "return not continues",
        ),
        (
            "a replica that goes back stays accepted",
            PROTOCOL,
            "            if not is_only:\n                one.ignore()\n            elif ends:",
            "            if is_only and ends:",
        ),
        (
            "the floor does not count what was forgotten of a transaction",
            PROTOCOL,
            "if has_forgotten:\n            self._raise_floor(start)",
            "pass",
        ),
        (
            "the floor does not count tags that were forgotten",
            PROTOCOL,
            "self._raise_floor(self._memory.forget(lowest(one.start for one in kept), self._limit // 2))",
            "self._memory.forget(lowest(one.start for one in kept), self._limit // 2)",
        ),
        (
            "the tag is the vector at which the transaction begins",
            PROTOCOL,
            "self._memory.end_transaction(replica, start)",
            "self._memory.end_transaction(replica, one.start)",
        ),
        (
            "an incomplete replica does not wait",
            PROTOCOL,
            "Verdict.DELIVER if one.is_complete else Verdict.WAIT",
            "Verdict.DELIVER",
        ),
        (
            "others stay accepted although ids of a transaction are forgotten",
            REPLICA,
            "if one is not kept:\n            one.ignore()",
            "pass",
        ),
        (
            "ids of a transaction without an end get the vector at which it began",
            PROTOCOL,
            "self._memory.break_off(replica, ends)\n            if not",
            "self._memory.break_off(replica, one.start)\n            if not",
        ),
        (
            "ids of a transaction without an end get the tag of the next one",
            PROTOCOL,
            "self._memory.break_off(replica, ends)\n            if not",
            "pass\n            if not",
        ),
        (
            "the first id of a transaction is not recalled as one of it",
            MEMORY,
            "has_none = first <= serial <= last",
            "has_none = first < serial <= last",
        ),
        (
            "recalled ids of a transaction that had not ended get the highest tag instead of the ends",
            MEMORY,
            'True: highest(summary["top"], found)}',
            'True: dict(summary["top"])}',
        ),
        (
            "what was delivered before is recalled too",
            MEMORY,
            "if not (has_none or (spans and spans[0][0] <= serial)):",
            "if False:",
        ),
        (
            "a span is left too early while ids are recalled",
            MEMORY,
            "spans[0][1] < serial",
            "spans[0][1] <= serial",
        ),
        (
            "the last id with a tag is in no span",
            MEMORY,
            "max(last, self._last.get(replica, last))) for",
            "last) for",
        ),
        (
            "ids that another replica was first to write are not in the spans of earlier batches",
            MEMORY,
            "earlier.spans[replica] = first, last",
            "break",
        ),
        (
            "recalled ids get the last tag instead of the highest one",
            MEMORY,
            "self.top = highest(self.top, tag)",
            "self.top = dict(tag)",
        ),
        (
            "an id that gets its tag from another replica loses its serial",
            MEMORY,
            "            batch.spans |= self._open[other].spans",
            "            pass",
        ),
        (
            "the ids of the current transactions do not count for the oldest serial",
            MEMORY,
            "(*self._untagged(), *self._tagged())",
            "self._tagged()",
        ),
        (
            "ids are forgotten one batch too many",
            MEMORY,
            "if reached(until, one.tag or {})]",
            "if reached(until, one.tag or {}) or len(one.run.batches) > 1]",
        ),
        (
            "an input topic that is not read any more stays in tags",
            PROTOCOL,
            "self._memory.change_tags(lambda tag: within(tag, read))",
            "pass",
        ),
        (
            "a replica is accepted although it reads other topics",
            PROTOCOL,
            "is_known and reads_the_same(one, self._replicas) and",
            "is_known and",
        ),
        (
            "a replica stays accepted although the complete ones read other topics",
            PROTOCOL,
            "if one.is_accepted and not reads_the_same(one, self._replicas):\n                one.ignore()",
            "pass",
        ),
        (
            "the floor stays although the only complete replica begins below it",
            PROTOCOL,
            "            self._floor = lowest([self._floor, start])\n",
            "            pass\n",
        ),
        (
            "the floor is given up as soon as the only complete replica says that it does not continue",
            PROTOCOL,
            "if start and self.complete == [replica]:",
            "if self.complete == [replica]:",
        ),
        (
            "tags stay beyond the ends of a topic that was recreated",
            PROTOCOL,
            "self._memory.change_tags(lambda tag: lowest([tag, ends]))\n",
            "pass\n",
        ),
    )
)


def broken_union(mutation: Mutation, source: str, folder: Path) -> Any:
    """Return the class `ReplicaUnion` with a broken rule. ``source``: the broken file, to be written to ``folder``."""
    from joiner.library.merging import protocol  # noqa: PLC0415 - so that the list can be read without them

    stem = Path(mutation.file).stem
    name = f"broken_{stem}"
    path = folder / f"{name}.py"
    path.write_text(source)
    broken = _loaded(name, path)
    if mutation.file != PROTOCOL:
        sound = Path(protocol.__file__).read_text()
        using = folder / f"protocol_with_{name}.py"
        using.write_text(sound.replace(f"from joiner.library.merging.{stem} import", f"from {name} import"))
        broken = _loaded(using.stem, using)
    return broken.ReplicaUnion


def _loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
