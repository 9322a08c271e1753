"""Do the Helm chart's values, its schema, its page and the settings of the services agree? Without Helm."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from broker.settings import load_settings
from connector.settings import Settings as ConnectorService
from control.settings import Settings as ControlService
from db_connector.settings import DbConnectorSettings
from joiner.runtime.settings import JoinerSettings
from tests.unit.project.documents import DOCS, ROOT, blocks, read, rows
from tests.unit.project.test_docs import MODELS

CHART: Final = ROOT / "deploy/helm/localstreambuffer"
PAGE: Final = DOCS / "kubernetes.md"
VALUES: Final[dict[str, Any]] = yaml.safe_load(read(CHART / "values.yaml"))
SCHEMA: Final[dict[str, Any]] = json.loads(read(CHART / "values.schema.json"))
SETS: Final = sorted((CHART / "ci").glob("*-values.yaml"))
_VARIABLE: Final = re.compile(r"\bLSB_([A-Z_]+?)__([A-Z0-9_]+)\b")


def of_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that a reference leads to, or the schema itself."""
    return SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the values that a schema describes, as ``joiner.replicas``, without those that are objects of others."""
    properties = of_schema(schema).get("properties", {})
    if not properties or path.endswith(".resources"):
        yield path
        return
    for name, inner in properties.items():
        if name != "global":
            yield from leaves(inner, f"{path}.{name}".lstrip("."))


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts of a schema that have named properties, with their paths."""
    found = of_schema(schema)
    if "properties" in found:
        yield path, found
        for name, inner in found["properties"].items():
            yield from objects(inner, f"{path}.{name}".lstrip("."))


def value_of(path: str, values: Mapping[str, Any] = VALUES) -> Any:
    """Return a value by its path."""
    found: Any = values
    for name in path.split("."):
        found = found[name]
    return found


def merged(given: Mapping[str, Any], values: Mapping[str, Any] = VALUES) -> dict[str, Any]:
    """Return values with those that are given, as Helm merges them."""
    result = dict(copy.deepcopy(values))
    for name, value in given.items():
        mine = result.get(name)
        result[name] = merged(value, mine) if isinstance(value, dict) and isinstance(mine, dict) else value
    return result


def check(values: Mapping[str, Any]) -> None:
    """Raise `jsonschema.ValidationError` if Helm would refuse the values."""
    jsonschema.Draft7Validator(SCHEMA).validate(values)


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return values in which one is different, or new."""
    given: Any = value
    for name in reversed(path.split(".")):
        given = {name: given}
    return merged(given)


def documented() -> dict[str, list[str]]:
    """Return the rows of the table of all values, by value."""
    return {row.cells[0].strip("`"): row.cells for row in rows(PAGE) if row.title == "value" and len(row.cells) == 3}


def test_the_schema_is_one_and_the_defaults_fit_it() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    check(VALUES)


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_the_sets_of_values_for_tests_fit_the_schema(path: Path) -> None:
    check(merged(yaml.safe_load(read(path))))


def test_every_value_has_a_schema_and_nothing_else_has() -> None:
    for path, schema in objects(SCHEMA):
        if not path.endswith(".resources") and "imagePullSecrets" not in path:
            found = value_of(path) if path else VALUES
            assert set(schema["properties"]) - {"global"} == set(found), path


def test_a_value_that_the_chart_does_not_know_is_refused_wherever_it_is() -> None:
    parts = [path for path, _ in objects(SCHEMA) if not path.startswith("global")]
    assert len(parts) > 15
    for part in parts:
        with pytest.raises(jsonschema.ValidationError, match="misspelt"):
            check(changed(f"{part}.misspelt".lstrip("."), 1))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("joiner.replicas", -1),
        ("joiner.replicas", "2"),
        ("image.repository", ""),
        ("image.pullPolicy", "Sometimes"),
        ("config", ""),
        ("config", {"kafka": {}}),
        ("listenAddress", "127.0.0.1"),
        ("metrics.port", 80),
        ("secrets.kafkaPassword.name", "a secret"),
        ("joiner.podDisruptionBudget.maxUnavailable", "many"),
        ("joiner.terminationGracePeriodSeconds", 5),
        ("joiner.autoscaling.minReplicas", 0),
        ("joiner.autoscaling.prometheusAddress", "prometheus:9090"),
        ("control.proxies", ["ingress"]),
        ("control.hosts", ["https://join.plant"]),
        ("environment", {"KAFKA": "x"}),
        ("environment", {"LSB_METRICS__LISTEN": "0.0.0.0:1"}),
        ("control.environment", {"LSB_CONTROL__LISTEN": "0.0.0.0:1"}),
        ("joiner.environment", {"LSB_APPLICATION__INSTANCE": "one"}),
        ("fullnameOverride", "Upper"),
    ],
)
def test_a_value_that_cannot_be_right_is_refused(path: str, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(changed(path, value))


def test_the_chart_may_be_a_part_of_another() -> None:
    check(changed("global", {"anything": 1}))


def test_every_value_is_documented_and_no_other() -> None:
    assert list(documented()) == list(leaves(SCHEMA))


def test_the_documented_defaults_are_those_of_the_chart() -> None:
    told = {path: cells[1] for path, cells in documented().items()}
    assert told.pop("config") == "an example"
    wrong = {
        path: (cell, value_of(path)) for path, cell in told.items() if yaml.safe_load(cell[1:-1]) != value_of(path)
    }
    assert wrong == {}


def test_the_examples_of_the_page_fit_the_schema_and_the_settings(tmp_path: Path) -> None:
    examples = [yaml.safe_load(block.text) for block in blocks(PAGE, "yaml")]
    assert [example.keys() for example in examples if "config" not in example] == [
        {"joiner", "connector", "dbConnector", "control"}  # what a replica adds to the settings of the application
    ]
    for example in examples:
        check(merged(example))
        for name, section in tomllib.loads(example.get("config", "")).items():
            for values in section if isinstance(section, list) else [section]:
                MODELS[name].model_validate(values)


def test_the_example_in_the_defaults_is_a_settings_file_for_every_service(tmp_path: Path) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(VALUES["config"])
    for model in (JoinerSettings, ConnectorService, DbConnectorSettings, ControlService):
        load_settings(model, file)


def test_every_setting_that_the_chart_or_its_page_names_exists() -> None:
    files = [*(CHART / "templates").iterdir(), *SETS, CHART / "values.yaml", CHART / "values.schema.json", PAGE]
    found = {match.groups() for file in files for match in _VARIABLE.finditer(read(file))}
    assert len(found) >= 10
    unknown = {
        f"{section}.{field}"
        for section, field in found
        if section != "SECTION" and field.lower() not in MODELS[section.lower()].model_fields
    }
    assert unknown == set()


def test_what_the_chart_sets_itself_cannot_be_set_by_values() -> None:
    templates = "".join(read(file) for file in (CHART / "templates").iterdir())
    refused = SCHEMA["definitions"]["environment"]["propertyNames"]["not"]["enum"]
    assert {f"LSB_{section}__{field}" for section, field in _VARIABLE.findall(templates)} == set(refused)


def test_the_chart_installs_the_version_of_the_package() -> None:
    chart = yaml.safe_load(read(CHART / "Chart.yaml"))
    assert chart["appVersion"] == tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["version"]
    assert set(re.findall(r"registry\.example/localstreambuffer[\w-]*:(\S+)", read(PAGE))) == {chart["appVersion"]}


def test_the_page_names_every_secret_with_its_setting() -> None:
    told = {row.cells[0].strip("`"): row.cells[2].strip("`") for row in rows(PAGE) if len(row.cells) == 4}
    named = {f"secrets.{name}": setting for name, setting in _files().items()}
    assert {value: setting for value, setting in told.items() if value.startswith("secrets.")} == named


def _files() -> dict[str, str]:
    """Return the settings that the chart sets to the file of a secret, by the secret's name in the values."""
    pattern = r'"(\w+)" "LSB_(\w+?)__(\w+)"'
    found = re.findall(pattern, read(CHART / "templates/_pod.tpl"))
    return {name: f"{section}.{field}".lower() for name, section, field in found if name in VALUES["secrets"]}
