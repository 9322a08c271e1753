"""The checkpoint folder of a stage. Only folders that a stage has created are removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from joiner.runtime.runners.spark.session import MARKER, ForeignFolder, StageFolder


def names(folder: Path) -> set[str]:
    return {found.name for found in folder.iterdir() if not found.name.endswith(".crc")}


def test_a_folder_that_no_stage_has_made_is_refused_and_stays(spark: SparkSession, tmp_path: Path) -> None:
    theirs = tmp_path / "plant"
    theirs.mkdir()
    (theirs / "results.parquet").write_text("years of work")
    folder = StageFolder(spark, str(theirs))
    with pytest.raises(ForeignFolder, match=f"{theirs} is not empty and has no file {MARKER}"):
        folder.begin()
    folder.remove()
    folder.remove_part("results.parquet")
    assert (theirs / "results.parquet").read_text() == "years of work"


def test_a_file_in_the_place_of_the_folder_is_refused_and_stays(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "spindle").write_text("text")
    with pytest.raises(ForeignFolder):
        StageFolder(spark, str(tmp_path / "spindle")).begin()
    assert (tmp_path / "spindle").read_text() == "text"


@pytest.mark.parametrize("there_before", ["", "checkpoints/spindle"])
def test_what_a_killed_stage_has_left_is_removed_by_the_next_and_all_of_it_at_the_end(
    spark: SparkSession, tmp_path: Path, there_before: str
) -> None:
    place = tmp_path / "checkpoints" / "spindle"
    (tmp_path / there_before).mkdir(parents=True, exist_ok=True)
    killed = StageFolder(spark, str(place))
    killed.begin()
    (place / "1" / "state").mkdir(parents=True)
    (tmp_path / "checkpoints" / "other").mkdir()
    again = StageFolder(spark, place.as_uri())
    again.begin()
    assert names(place) == {MARKER}
    for query in ("1", "2"):
        (place / query).mkdir()
    again.remove_part("1")
    assert names(place) == {MARKER, "2"}
    again.remove()
    assert names(tmp_path / "checkpoints") == {"other"}


def test_a_removal_that_is_cut_short_leaves_the_sign_of_who_made_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "spindle"
    folder = StageFolder(spark, str(place))
    folder.begin()
    for query in ("0", "1", "z"):
        (place / query).mkdir()
    removed: list[str] = []

    class DyingFiles:
        """Hadoop's file system, but every deletion after the first one fails."""

        def __init__(self, real: object) -> None:
            self._real = real

        def delete(self, path: object, _recursive: object) -> None:
            """Fail from the second call on."""
            if removed:
                raise KeyboardInterrupt
            removed.append(str(path))

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    monkeypatch.setattr(folder, "_files", DyingFiles(folder._files))  # noqa: SLF001 - injects the failure
    with pytest.raises(KeyboardInterrupt):
        folder.remove()
    assert MARKER not in removed[0]
    StageFolder(spark, str(place)).remove()
    assert not place.exists()
