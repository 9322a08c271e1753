"""Do records of the state topic survive encoding and decoding, and is a damaged state topic refused?"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from broker.kafka.topics import TopicFacts
from joiner.runtime.model import (
    FORMAT_VERSION,
    Checkpoint,
    JoinSummary,
    Manifest,
    OnTheWay,
    StateLog,
    UnitStopped,
    checkpoint_key,
    chunk_key,
    decode_checkpoint,
    decode_manifest,
    encode,
    manifest_key,
)
from joiner.runtime.ownership.eligibility import Claimant, check_continues
from tests.unit.joiner.runtime.joiner_inputs import DATA, POWER, make_settings

RESET = "`joiner reset`"


def make_checkpoint(**changes: Any) -> Checkpoint:
    settings = make_settings()
    made = Checkpoint(
        format=FORMAT_VERSION,
        application="lsb",
        unit=0,
        run="run",
        instance="one",
        site="process",
        offsets={DATA: 12},
        start={DATA: 3},
        topics={DATA: "id"},
        partitions=1,
        fingerprint=settings.fingerprint(),
        semantics=settings.semantics(),
        counts={"pairs": 5},
        joins={"power": JoinSummary(1, 2, 3, (4, 5), None)},
    )
    return msgspec.structs.replace(made, **changes)


def make_manifest(serial: int, slot: int, data: bytes = b"abcdef", chunks: int = 2, **changes: Any) -> Manifest:
    digest = hashlib.sha256(data).hexdigest()
    made = Manifest(FORMAT_VERSION, serial, slot, chunks, len(data), digest, {DATA: serial}, "fingerprint")
    return msgspec.structs.replace(made, **changes)


def test_records_come_back_as_they_were_written() -> None:
    assert decode_checkpoint(encode(make_checkpoint())) == make_checkpoint()
    assert decode_manifest(encode(make_manifest(1, 1))) == make_manifest(1, 1)


def test_the_keys_are_those_of_the_format() -> None:
    assert (checkpoint_key(3), manifest_key(3, 1), chunk_key(3, 1, 7)) == ("3/progress", "3/1/manifest", "3/1/7")


@pytest.mark.parametrize("value", [b"", b"null", b"{}", b"\x00", b'{"format": "1"}', b'{"format": 1, "x": "\xff"}'])
def test_what_is_no_progress_record_stops_the_unit(value: bytes) -> None:
    with pytest.raises(UnitStopped, match="unit 0: a record of the state topic cannot be read"):
        StateLog(0, {checkpoint_key(0): value}).checkpoint()


def test_a_newer_format_is_refused() -> None:
    newer = encode(make_checkpoint(format=FORMAT_VERSION + 1))
    for value in (newer, b'{"format": 2, "everything": {"else": ["is", "new"]}}'):
        log = StateLog(0, {checkpoint_key(0): value, manifest_key(0, 1): value})
        with pytest.raises(UnitStopped, match="newer release"):
            log.checkpoint()
        with pytest.raises(UnitStopped, match="newer release"):
            log.manifests()
    assert StateLog(0).checkpoint() is None


@pytest.mark.parametrize("serials", [(4, 5), (6, 5)])
def test_the_newest_snapshot_is_the_one_with_the_highest_serial(serials: tuple[int, int]) -> None:
    values = {manifest_key(0, slot): encode(make_manifest(serial, slot)) for slot, serial in enumerate(serials)}
    assert [manifest.serial for manifest in StateLog(0, values).manifests()] == sorted(serials, reverse=True)


def test_a_snapshot_is_the_chunks_its_manifest_counts() -> None:
    values = {"0/0/0": b"abc", "0/0/1": b"def", "0/0/2": b"surplus", "0/1/0": b"other", "0/0/manifest": b""}
    assert StateLog(0, values).snapshot(make_manifest(2, 0), RESET) == b"abcdef"
    assert StateLog(0, values).chunks_in(0) == 3


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"0/0/0": b"abc"}, "lacks 0/0/1"),
        ({"0/0/1": b"def"}, "lacks 0/0/0"),
        ({"0/0/0": b"abc", "0/0/1": b"deg"}, "does not match its checksum"),
        ({"0/0/0": b"def", "0/0/1": b"abc"}, "does not match its checksum"),
    ],
)
def test_a_snapshot_with_a_missing_or_altered_chunk_is_an_error(values: dict[str, bytes], fault: str) -> None:
    with pytest.raises(UnitStopped, match=fault):
        StateLog(0, values).snapshot(make_manifest(2, 0), RESET)


def test_a_manifest_that_counts_more_chunks_than_there_can_be_is_an_error_at_once() -> None:
    """The missing chunks were once counted one by one, which took practically forever for a damaged manifest."""
    manifest = msgspec.structs.replace(make_manifest(2, 0), chunks=10**15)
    with pytest.raises(UnitStopped, match="lacks 0/0/1, 0/0/2, 0/0/3"):
        StateLog(0, {"0/0/0": b"abc"}).snapshot(manifest, RESET)


@pytest.mark.parametrize(
    ("changes", "join", "said"),
    [
        ({"site": "spark", "instance": "driver"}, POWER, "owned by spark driver: move it (`joiner move --to process`)"),
        (
            {"site": "green", "run": OnTheWay("m", "spark").run()},
            POWER,
            "is on its way from spark to green: start a joiner with --site green",
        ),
        ({}, {**POWER, "tolerance": "1s"}, "joins.power.tolerance_ns: None then, 1000000000 now"),
        ({}, {**POWER, "name": "force"}, "joins.force"),
        ({"partitions": 2}, POWER, "started with 2 partitions, but now there are 1"),
        ({"topics": {DATA: "older"}}, POWER, f"{DATA} was deleted and recreated"),
    ],
)
def test_what_does_not_continue_is_refused_with_what_changed(
    changes: dict[str, Any], join: dict[str, Any], said: str
) -> None:
    facts = {DATA: TopicFacts("id", 1)}
    with pytest.raises(UnitStopped) as refused:
        check_continues(make_settings(join), make_checkpoint(**changes), facts, Claimant("run2", "two"))
    assert said in str(refused.value)


@pytest.mark.parametrize("claimant", [Claimant("run2", "two"), Claimant("run2", "two", force=True)])
def test_the_same_settings_and_topics_continue(claimant: Claimant) -> None:
    check_continues(make_settings(), make_checkpoint(), {DATA: TopicFacts("id", 1)}, claimant)


def test_another_runner_is_taken_by_force_only() -> None:
    spark = make_checkpoint(site="spark")
    check_continues(make_settings(), spark, {DATA: TopicFacts("id", 1)}, Claimant("run2", "two", force=True))


@pytest.mark.parametrize("move", ["23fc8d182feb", "a:b", ":", "", "moving:x:y"])
def test_a_unit_on_its_way_is_known_whatever_the_move_is_called(move: str) -> None:
    way = OnTheWay(move, "process")
    checkpoint = make_checkpoint(run=way.run(), site="spark")
    assert checkpoint.on_the_way == way
    assert checkpoint.owner == "nobody: on its way from process to spark"


@pytest.mark.parametrize("run", ["run", "reset", "moving", "moving:", "moving:one"])
def test_a_run_that_is_no_move_is_not_on_its_way(run: str) -> None:
    assert make_checkpoint(run=run).on_the_way is None
