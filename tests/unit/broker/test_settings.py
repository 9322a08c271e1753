"""Where the shared settings are read from, and how secrets are protected."""

from __future__ import annotations

import json
import os
from pathlib import Path

import certifi
import pytest
from confluent_kafka import Producer
from pydantic import Field

from broker.partitioner import PARTITIONER
from broker.settings import (
    SECRET_BYTES_MAX,
    TOPIC_BYTES_MAX,
    Duration,
    InfluxdbSettings,
    KafkaSettings,
    MqttSettings,
    Section,
    ServiceSettings,
    SettingsError,
    TopicSettings,
    load_settings,
    read_secret,
)

SECRET = "s3kret"  # noqa: S105 - a secret used only by this test


class Named(Section):
    """An element of a list."""

    name: str
    wait: Duration = 0


class Service(ServiceSettings):
    """The settings of an example service."""

    kafka: KafkaSettings = KafkaSettings()
    mqtt: MqttSettings = MqttSettings()
    influxdb: InfluxdbSettings = InfluxdbSettings()
    topics: TopicSettings = TopicSettings()
    join: list[Named] = Field(default_factory=list)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.upper().startswith("LSB_") and "__" in name]:
        monkeypatch.delenv(variable)


def errors_of(tmp_path: Path, content: str = "") -> list[str]:
    """Return the lines of the error that settings with this file content raise."""
    file = tmp_path / "lsb.toml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError) as refused:
        load_settings(Service, file)
    return [line.removeprefix(f"{file}: ") for line in str(refused.value).splitlines()]


def test_the_environment_overrides_the_file_and_the_file_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(
        "[kafka]\nbootstrap_servers = 'file:1'\n[mqtt]\nhost = 'file'\nport = 7\n[application]\nname = 'x'\n"
    )
    monkeypatch.setenv("LSB_MQTT__HOST", "environment")
    monkeypatch.setenv("LSB_KAFKA__BOOTSTRAP_SERVERS", "")
    settings = load_settings(Service, file)
    assert settings.kafka.bootstrap_servers == "file:1", "an empty variable is unset"
    assert (settings.mqtt.host, settings.mqtt.port) == ("environment", 7)
    assert settings.topics.data == "machine.data"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[kafka", "cannot be read as TOML"),
        ("[mqtt]\nport = " + "9" * 5000, "cannot be read as TOML"),
        ("[mqtt]\nport = " + "[" * 5000, "cannot be read as TOML"),
        ("[joins]\n", r"\[joins\] is not a section; the sections are align, application"),
        ("[kafka]\nbootstrap = 1\n", "kafka.bootstrap"),
        ("[mqtt]\nport = 70000\n", "mqtt.port"),
        ("[topics]\ndata = 'a b'\n", "topics.data"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=reason):
        load_settings(Service, file)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--config"):
        load_settings(Service, tmp_path / "none.toml")


def test_secrets_come_from_a_file_and_are_not_shown(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    kafka = KafkaSettings(sasl_password_file=secret, client={"security.protocol": "SASL_SSL"})
    assert kafka.client_config()["sasl.password"] == "s3cret"
    assert kafka.client_config()["security.protocol"] == "SASL_SSL"
    mqtt = MqttSettings.model_validate({"password": "pass"})
    assert mqtt.secret() == "pass"
    assert "pass" not in repr(mqtt).replace("password", "")
    with pytest.raises(SettingsError, match="cannot be read"):
        KafkaSettings(sasl_password_file=tmp_path / "gone").client_config()


def test_producers_are_idempotent_and_share_the_partitioner() -> None:
    config = KafkaSettings(client={"partitioner": "random", "acks": 1}).producer_config(linger_ms=5)
    assert (config["partitioner"], config["acks"], config["enable.idempotence"]) == (PARTITIONER, "all", True)
    assert config["linger.ms"] == 5


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("LSB_KAFKA__CLIENT", f"{{'{SECRET}", "kafka.client: must be a table; it comes from LSB_KAFKA__CLIENT"),
        ("LSB_KAFKA__CLIENT", "null", "kafka.client: must be a table; it comes from LSB_KAFKA__CLIENT"),
        ("LSB_KAFKA", SECRET, "kafka: must be a table; it comes from LSB_KAFKA,"),
        ("LSB_KAFKA", f'["{SECRET}"]', "kafka: must be a table; it comes from LSB_KAFKA,"),
        ("LSB_JOIN", SECRET, "join: must be a list; it comes from LSB_JOIN,"),
        ("LSB_JOIN", "[" * 100_000, "join: must be a list; it comes from LSB_JOIN,"),
        ("LSB_JOIN__0__NAME", SECRET, "join: must be a list; it comes from LSB_JOIN__0__NAME,"),
    ],
)
def test_a_variable_that_is_no_json_is_one_line_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, line: str
) -> None:
    monkeypatch.setenv(variable, value)
    (found,) = errors_of(tmp_path)
    assert found.startswith(line)
    assert "JSON" in found
    assert SECRET not in found


def test_a_variable_overrides_a_table_of_the_file_entry_by_entry_and_a_list_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text("[kafka.client]\na = 'file'\nb = 'file'\n[[join]]\nname = 'file'\n[[join]]\nname = 'more'\n")
    monkeypatch.setenv("LSB_KAFKA__CLIENT", '{"a": "environment"}')
    monkeypatch.setenv("LSB_JOIN", '[{"name": "environment"}]')
    settings = load_settings(Service, file)
    assert settings.kafka.client == {"a": "environment", "b": "file"}
    assert [named.name for named in settings.join] == ["environment"]


@pytest.mark.parametrize("variable", ["LSB_KAFAK__BOOTSTRAP_SERVERS", "lsb_kafak__bootstrap_servers", "LSB_KAFAK__"])
def test_a_variable_of_an_unknown_section_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, SECRET)
    (line,) = errors_of(tmp_path)
    assert line.startswith(
        f"environment: {variable.upper()}: [kafak] is not a section; the sections are align, application, "
    )


def test_variables_that_are_no_settings_or_of_other_services_or_empty_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LSB_CACHE", "LSB_MQTT_BROKER", "LSB_INFLUXD", "LSB_CHAOS_SEEDS", "LSB_DB_CONNECTOR__GROUP"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LSB_KAFAK__CLIENT", "")
    monkeypatch.chdir(tmp_path)
    assert load_settings(Service).kafka == KafkaSettings()


def test_an_unknown_setting_in_a_variable_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_INFLUXDB__TOKN", SECRET)
    (line,) = errors_of(tmp_path)
    assert line.startswith("influxdb.tokn: is not a known setting")
    assert "LSB_INFLUXDB__TOKN" in line
    assert SECRET not in line


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (f"[influxdb]\ntoken = ['{SECRET}']\n", "influxdb.token"),
        (f"[influxdb]\ntoken = '{SECRET}\u20ac'\n", "influxdb.token"),
        (f"[mqtt]\npassword = {{ a = '{SECRET}' }}\n", "mqtt.password"),
        (f"[kafka]\nclient = '{SECRET}'\n", "kafka.client"),
        (f"[kafka.client]\n'sasl.password' = ['{SECRET}']\n", "kafka.client"),
        (f"kafka = '{SECRET}'\n", "kafka"),
        (f"[mqtt]\nhost = {{ password = '{SECRET}' }}\n", "mqtt.host"),
        (f"[influxdb]\nurl = 'http://user:{SECRET}@host'\n", "influxdb.url"),
        (f"[mqtt]\npasswort = '{SECRET}'\n", "mqtt.passwort"),
    ],
)
def test_an_invalid_secret_is_reported_in_one_line_without_the_secret(tmp_path: Path, content: str, place: str) -> None:
    (line,) = errors_of(tmp_path, content)
    assert line.startswith(f"{place}: ")
    assert SECRET not in line


def test_a_mistake_in_the_clients_settings_names_the_entries_and_a_variable_that_exists(tmp_path: Path) -> None:
    (line,) = errors_of(tmp_path, "[kafka.client]\n'ssl.ca' = ['x']\ngood = 1\n'b.c' = {}\n")
    assert line == (
        "kafka.client: 'ssl.ca', 'b.c' must be a string, a number, true or false; set it there or in LSB_KAFKA__CLIENT"
    )


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ({}, 1_000),
        ({"reconnect.backoff.max.ms": 7_000}, 7_000),
        ({"reconnect.backoff.max.ms": 7_000, "reconnect.backoff.ms": 2_000}, 7_000),
        ({"reconnect.backoff.ms": 2_000}, None),
    ],
)
def test_clients_try_to_connect_once_a_second_unless_they_are_told_otherwise(
    client: dict[str, str | int | float | bool], expected: int | None
) -> None:
    config = KafkaSettings(client=client).producer_config()
    assert config.get("reconnect.backoff.max.ms") == expected
    Producer(config)  # accepts it


def test_a_value_that_is_no_secret_is_shown_with_the_variable_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSB_MQTT__PORT", "x")
    (line,) = errors_of(tmp_path, "[mqtt]\nport = 1\n")
    assert line.endswith("(given: 'x'); it comes from LSB_MQTT__PORT, which overrides the file")


@pytest.mark.parametrize("wait", ["[]", "{}", "2020-01-01", "true", "5", "nan", "'5'"])
def test_a_duration_without_a_unit_is_a_mistake_whatever_it_is(tmp_path: Path, wait: str) -> None:
    (line,) = errors_of(tmp_path, f"[[join]]\nname = 'a'\nwait = {wait}\n")
    assert line.startswith("join.0.wait: expected a duration with a unit")
    assert line.endswith("set it there or in LSB_JOIN")


@pytest.mark.parametrize("content", ["s3kret", "s3kret\n", "  s3kret \r\nnot this\n", "s3kret\n\n\ufffd"])
def test_a_secret_is_the_first_line_of_its_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content.encode())
    assert read_secret(file) == SECRET


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is empty"),
        (b"\nsecond", "is empty"),
        (b" \t\r\n", "is empty"),
        (b"\xff", "is not UTF-8"),
        (b"x" * (SECRET_BYTES_MAX + 1), "is longer than 65535 bytes"),
        (b"x" + "ä".encode() * (SECRET_BYTES_MAX // 2 + 1), "is longer than 65535 bytes"),
    ],
)
def test_a_secret_that_cannot_be_read_is_a_mistake_with_a_way_out(
    tmp_path: Path, content: bytes | None, fault: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError) as refused:
        read_secret(file)
    assert fault in str(refused.value)
    assert str(file) in str(refused.value)
    assert "specify a text file" in str(refused.value)


def test_only_a_regular_file_can_hold_a_secret(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for file in (tmp_path, pipe, Path("a\0b")):
        with pytest.raises(SettingsError, match="it is not a regular file"):
            read_secret(file)


def test_every_unusable_file_and_address_is_reported_before_the_start(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.write_text("")
    lines = errors_of(
        tmp_path,
        f"[kafka]\nsasl_password_file = '{missing}'\nbootstrap_servers = ''\n"
        f"[mqtt]\nhost = ''\ntopic = 'a/#/b'\ntls_ca_file = '{missing}'\npassword_file = '{empty}'\n"
        f"[influxdb]\nurl = 'nonsense'\ntls_ca_file = '{empty}'\ntoken_file = '{tmp_path}'\n"
        "[topics]\npartitions = 0\n",
    )
    places = [line.split(":")[0] for line in lines]
    assert sorted(places) == [
        "influxdb.tls_ca_file", "influxdb.token_file", "influxdb.url",
        "kafka.bootstrap_servers", "kafka.sasl_password_file",
        "mqtt.host", "mqtt.password_file", "mqtt.tls_ca_file", "mqtt.topic",
        "topics.partitions",
    ]  # fmt: skip
    assert any("no usable certificates" in line and "LSB_INFLUXDB__TLS_CA_FILE" in line for line in lines)


def test_files_that_can_be_used_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("user:s3kret\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LSB_INFLUXDB__TOKEN_FILE", "secret")
    monkeypatch.setenv("LSB_MQTT__TLS_CA_FILE", certifi.where())
    settings = load_settings(Service)
    assert settings.influxdb.secret() == "user:s3kret"
    assert settings.mqtt.tls_ca_file == Path(certifi.where())


def test_a_file_that_only_another_service_needs_is_not_asked_for(tmp_path: Path) -> None:
    class Other(ServiceSettings):
        topics: TopicSettings = TopicSettings()

    file = tmp_path / "lsb.toml"
    file.write_text("[mqtt]\ntls_ca_file = 'missing'\n")
    assert load_settings(Other, file).topics == TopicSettings()


def test_a_token_file_whose_text_http_cannot_send_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\u20ac\n", encoding="utf-8")
    (line,) = errors_of(tmp_path, f"[influxdb]\ntoken_file = '{tmp_path / 'secret'}'\n")
    assert "not allowed in an HTTP header" in line
    assert SECRET not in line


@pytest.mark.parametrize(
    "topic",
    ["a", "/", "a//b", "+", "#", "a/+/b", "+/+/#", "a b", "$share/g/a/#", "$share/g//", "$shared", "$queue/a", "ä"],
)
def test_a_topic_filter_of_mqtt_is_accepted(topic: str) -> None:
    assert MqttSettings(topic=topic).topic == topic


@pytest.mark.parametrize(
    "topic",
    [
        *("", "a/#/b", "#/", "a#", "a/b+", "++", "+a/b", "##", "a\0b", "\udcff", "ä" * (TOPIC_BYTES_MAX // 2 + 1)),
        *("$share", "$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/#", "$queue", "$queue/"),
    ],
)
def test_what_is_no_topic_filter_of_mqtt_is_refused(topic: str) -> None:
    with pytest.raises(ValueError, match="must be an MQTT topic filter: 1 to 65535 bytes of UTF-8 without NUL"):
        MqttSettings(topic=topic)


@pytest.mark.parametrize("url", ["http://h", "https://h:8086", "HTTP://[::1]:80/", "http://10.0.0.1:8086/influx"])
def test_an_address_over_http_is_accepted(url: str) -> None:
    assert InfluxdbSettings(url=url).url == url


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "ftp://x", "h:8086", "http://", "http://:80", "http://h:x", "http://h:70000", "http://h:0",
     "http://[::1", "http://a b", "http://h\n", "http://h?a=b", "http://h#a", "http://user@h"],
)  # fmt: skip
def test_what_is_no_address_over_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must "):
        InfluxdbSettings(url=url)


def test_a_whole_section_may_come_from_one_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_MQTT", json.dumps({"host": "h", "topic": "a#"}))
    (line,) = errors_of(tmp_path)
    assert line.endswith("(given: 'a#'); it comes from LSB_MQTT, which overrides the file")
