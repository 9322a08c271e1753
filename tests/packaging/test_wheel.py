"""The wheel works in separate environments: the library alone, with the services, and with Spark."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

import pytest

import joiner
from tests.packaging.environments import (
    Environment,
    build_wheel,
    link_environment,
    lock_entries,
    locked,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVICES: Final = (
    "simulator",
    "lsb-import",
    "lsb-init",
    "connector",
    "joiner",
    "db_connector",
    "lsb-stack",
    "lsb-tester",
)
COMMANDS: Final = (*SERVICES, "lsb-control")
INSTALLED: Final = {"broker", "connector", "control", "db_connector", "joiner", "simulator"}
JOIN: Final = '[{"name": "j", "left": "a", "right": "b", "output": "c"}]'

IN_PYTHON: Final = {"NUMBA_DISABLE_JIT": "1"}
"""For runs that join at most three rows. Compiling takes 12 s, so only one environment tests it."""

QUICKLY: Final = {"NUMBA_OPT": "0"}
"""For that one, which tests that loops can be compiled, and not how fast they are."""

LIBRARY: Final = """
import sys
import joiner
pairs = joiner.join({"at": [10, 30]}, {"at": [20, 24]}, on="at")
print(joiner.__version__, pairs["at_left"].tolist(), pairs["at_right"].tolist())
print(joiner.__file__)
print({"confluent_kafka", "msgspec", "pydantic", "pyspark", "structlog"} & set(sys.modules))
"""

SPARK: Final = """
from pyspark.sql import SparkSession
from joiner.spark import neighbour_join
options = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "1"}
options["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
spark = SparkSession.builder.master("local[1]").config(map=options).getOrCreate()
left = spark.createDataFrame([("mill", 10), ("mill", 30)], "machine string, at long")
right = spark.createDataFrame([("mill", 20)], "machine string, at long")
pairs = neighbour_join(left, right, by="machine", time="at")
print("PAIRS", sorted((row.at_left, row.at_right) for row in pairs.collect()))
spark.stop()
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def library(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return link_environment(tmp_path_factory.mktemp("library"), wheel, "library")


@pytest.fixture(scope="session")
def service(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return link_environment(tmp_path_factory.mktemp("service"), wheel, "services")


@pytest.fixture(scope="session")
def spark(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return link_environment(tmp_path_factory.mktemp("spark"), wheel, "spark")


def test_the_wheel_has_the_packages_of_the_pipeline_and_no_others(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == INSTALLED
    assert "broker/stack/templates/kafka.properties" in names


@pytest.mark.parametrize("lock", ["library", "services", "spark"])
def test_pip_installs_the_same_files_of_a_package_as_in_the_development_environment(lock: str) -> None:
    # The environments have links to those files. Whether a lock lacks a package, pip says in the tests below.
    assert lock_entries(lock)
    assert lock_entries(lock) < lock_entries("dev")


def test_the_library_joins_with_numpy_and_numba_alone(library: Environment) -> None:
    done = library.run("python", "-c", LIBRARY, **QUICKLY)
    assert done.stdout.splitlines() == [
        f"{joiner.__version__} [10, 10, 30, 30] [20, 24, 20, 24]",
        f"{library.site}/joiner/__init__.py",
        "set()",
    ], done.stderr
    assert library.packages() == {"llvmlite", "localstreambuffer", "numba", "numpy"}
    assert library.missing("localstreambuffer") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_knows_its_version_without_any_extra(library: Environment, command: str) -> None:
    done = library.run(command, "--version", **IN_PYTHON)
    assert (done.stdout, done.returncode) == (f"{command} {joiner.__version__}\n", 0), done.stderr


@pytest.mark.parametrize(
    "command",
    [
        *(["joiner", "run"], ["joiner", "--help"], ["connector"], ["db_connector"], ["simulator"], ["lsb-tester"]),
        *(["lsb-import"], ["lsb-init", "plant"]),
        *(["python", "-m", "joiner", "run"], ["python", "-m", "connector"], ["python", "-m", "simulator"]),
        *(["python", "-m", "db_connector"], ["python", "-m", "joiner.tester"]),
    ],
    ids=" ".join,
)
def test_a_command_without_its_extra_names_it_in_a_line(library: Environment, command: list[str]) -> None:
    done = library.run(*command, **IN_PYTHON)
    (line,) = done.stderr.splitlines()
    assert " is not installed: pip install 'localstreambuffer[service]'" in line
    assert (done.stdout, done.returncode) == ("", 2)


def test_the_joiner_without_its_extra_names_the_kafka_client(library: Environment) -> None:
    done = library.run("joiner", "run", **IN_PYTHON)
    assert done.stderr.startswith("joiner: confluent-kafka is not installed: pip install 'localstreambuffer[service]'")


def test_the_control_service_without_its_extra_names_it(service: Environment) -> None:
    done = service.run("lsb-control", "run", **IN_PYTHON)
    assert done.stderr.startswith("lsb-control: argon2-cffi is not installed: pip install 'localstreambuffer[control]'")
    assert (done.stdout, done.returncode) == ("", 2)


def test_the_local_stack_without_its_extra_names_it(library: Environment) -> None:
    done = library.run("lsb-stack", "up")
    assert "confluent-kafka is not installed: pip install 'localstreambuffer[spark]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_the_join_of_dataframes_without_its_extra_names_it(library: Environment) -> None:
    done = library.run("python", "-c", "import joiner.spark", **IN_PYTHON)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: pyspark is not installed: pip install 'localstreambuffer[spark]'"
    )


def test_the_services_are_what_their_extra_asks_for(service: Environment) -> None:
    assert service.packages() == {"localstreambuffer", *locked("services")}
    assert service.missing("localstreambuffer[service]") == []
    assert service.missing("localstreambuffer[sparkplug]") == []
    assert service.missing("localstreambuffer[protobuf]") == []


@pytest.mark.parametrize("command", SERVICES)
def test_every_command_of_the_services_explains_itself(service: Environment, command: str) -> None:
    done = service.run(command, "--help", **IN_PYTHON)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["joiner", "run"], "lsb.toml: there is neither a [[join]] nor an [[align]]"),
        (["connector"], "kafka.security_protocol"),
        (["db_connector"], "kafka.security_protocol"),
        (["simulator"], "events.json does not exist"),
        (["lsb-import"], "events.json does not exist"),
        (["lsb-init", "plant"], "kafka.security_protocol"),
        (["lsb-tester", "verify"], "lsb.toml: there is neither a [[join]] nor an [[align]]"),
    ],
    ids=str,
)
def test_wrong_settings_are_named_and_nothing_starts(service: Environment, command: list[str], words: str) -> None:
    done = service.run(*command, **IN_PYTHON, LSB_KAFKA__SECURITY_PROTOCOL="none")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


def test_the_stage_without_its_extra_names_it_in_a_line(service: Environment) -> None:
    done = service.run("joiner", "spark", **IN_PYTHON, LSB_JOIN=JOIN)
    assert done.stderr.splitlines()[-1].startswith(
        "joiner: pyspark is not installed: pip install 'localstreambuffer[spark]'"
    )
    assert done.returncode == 2


def test_two_dataframes_are_joined_with_the_packages_of_the_extra(spark: Environment) -> None:
    done = spark.run("python", "-c", SPARK, **IN_PYTHON)
    assert "PAIRS [(10, 20), (30, 20)]" in done.stdout, done.stderr
    assert spark.packages() == {"localstreambuffer", *locked("spark")}
    assert spark.missing("localstreambuffer[spark]") == []
