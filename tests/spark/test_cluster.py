"""Does the operator work on a cluster whose machines have only the files in ``--py-files``?"""

from __future__ import annotations

import json
import os
import random
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from demo import neighbour_join as example
from tests.property.final_rows import Expected, Row, expected_rows
from tests.spark.cluster import cluster, submit
from tests.spark.conftest import ROOT


def zipped(folder: Path) -> Path:
    """Return a zip file with only the package, as made by ``python -m zipfile -c joiner.zip joiner/``."""
    path = folder / "joiner.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted((ROOT / "joiner").rglob("*.py")):
            archive.write(source, source.relative_to(ROOT))
    return path


@pytest.mark.long
@pytest.mark.timeout(900)
def test_on_a_standalone_cluster_tables_and_streams_are_joined_from_a_zip(tmp_path: Path) -> None:
    draw = random.Random(7)
    sides = [Expected(10, has_watermark=False) for _ in "lr"]
    for side, name in zip(sides, ("left", "right"), strict=True):
        (tmp_path / name).mkdir()
        rows = [Row(draw.randrange(3), at // 2, 0, at) for at in range(60)]
        side.add(rows, 0)
        for part in range(3):
            lines = [
                json.dumps({"machine": row.key, "at": row.ts, "number": row.number}) for row in rows[part * 20 :][:20]
            ]
            path = tmp_path / name / f"{part}.json"
            path.write_text("\n".join(lines), encoding="utf-8")
            # Files are read in the order of their modification times.
            os.utime(path, (part, part))
    with cluster(tmp_path) as master:
        job = ROOT / "tests" / "spark" / "cluster_job.py"
        output = submit(master, tmp_path, "--py-files", str(zipped(tmp_path)), str(job), str(tmp_path))
    (line,) = [line for line in output.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    whole, certain = expected_rows(sides, ends=True), expected_rows(sides)
    assert found["table"] == sorted(map(list, whole))
    assert found["stream"] == sorted(map(list, certain))
    assert found["places"]
    assert all("joiner.zip/joiner/spark/reordering.py []" in place for place in found["places"])
    executors = [*(tmp_path / "one").glob("*/*"), *(tmp_path / "two").glob("*/*")]
    assert len(executors) == 2, "each worker has run an executor"


def test_the_example_for_newcomers_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example.show(spark, tmp_path)
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines[1:]]
    assert [(machine, left[11:], right[11:], power) for machine, left, _, right, _, power in cells] == [
        ("lathe", "10:00:12", "10:00:11", "3000.0"),
        ("mill", "10:00:00", "10:00:20", "3600.0"),
        ("mill", "10:00:00", "10:00:24", "4500.0"),
        ("mill", "10:00:30", "10:00:20", "3800.0"),
        ("mill", "10:00:30", "10:00:24", "4750.0"),
    ]
