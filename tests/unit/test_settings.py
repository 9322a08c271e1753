"""Where do shared settings come from, and do secrets stay secret?"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.partitioner import PARTITIONER
from broker.settings import KafkaSettings, MqttSettings, ServiceSettings, SettingsError, TopicSettings, load_settings


class Service(ServiceSettings):
    """Some service."""

    kafka: KafkaSettings = KafkaSettings()
    mqtt: MqttSettings = MqttSettings()
    topics: TopicSettings = TopicSettings()


def test_the_environment_goes_before_the_file_and_the_file_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lsb.toml"
    file.write_text("[kafka]\nbootstrap_servers = 'file:1'\n[mqtt]\nhost = 'file'\nport = 7\n[influxdb]\nurl = 'x'\n")
    monkeypatch.setenv("LSB_MQTT__HOST", "environment")
    monkeypatch.setenv("LSB_KAFKA__BOOTSTRAP_SERVERS", "")
    settings = load_settings(Service, file)
    assert settings.kafka.bootstrap_servers == "file:1", "an empty variable is none"
    assert (settings.mqtt.host, settings.mqtt.port) == ("environment", 7)
    assert settings.topics.data == "machine.data"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[kafka", "cannot be read as TOML"),
        ("[joins]\n", r"\[joins\] is no section; there are application"),
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
