"""The settings that several services share, and how every service reads its own.

One TOML file (``lsb.toml``) holds all sections; an environment variable ``LSB_<SECTION>__<FIELD>`` goes before
it. Each service validates the sections it uses, all mistakes together, before it starts anything. Secrets come
from the environment or from a file that is named here, never from a command line.
"""

from __future__ import annotations

import tomllib
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from broker.partitioner import PARTITIONER
from broker.times import parse_duration

DEFAULT_FILE: Final = Path("lsb.toml")
SECTIONS: Final = frozenset(
    {"kafka", "mqtt", "influxdb", "topics", "events", "connector", "application", "join", "db_connector"}
)
"""Every section that any service reads; another one in the file is a misspelling."""

Duration = Annotated[int, BeforeValidator(parse_duration)]
"""int64 nanoseconds, written with a unit: ``"250ms"``, ``"2s"``, ``"1d"``."""

TopicName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,200}$")]
"""What Kafka takes as the name of a topic, with room for a suffix."""


class SettingsError(Exception):
    """Settings that cannot be used; ``str`` lists every mistake on a line of its own."""


class Section(BaseModel):
    """A section of the file: a field it does not know is a mistake, and nothing changes after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaSettings(Section):
    """How to reach Kafka. ``client`` is passed to librdkafka as it is (SASL, TLS, …)."""

    bootstrap_servers: str = "127.0.0.1:9092"
    client: dict[str, str | int | float | bool] = Field(default_factory=dict)
    sasl_password_file: Path | None = None

    def client_config(self, **more: str | float | bool) -> dict[str, Any]:
        """The configuration of a librdkafka client; ``more`` uses ``_`` for ``.`` and goes before the rest."""
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers, **self.client}
        if self.sasl_password_file is not None:
            config["sasl.password"] = read_secret(self.sasl_password_file)
        config.update({name.replace("_", "."): value for name, value in more.items()})
        return config

    def producer_config(self, **more: str | float | bool) -> dict[str, Any]:
        """As `client_config`, for a producer: idempotent, acknowledged by all replicas, the shared partitioner."""
        durable: dict[str, str | float | bool] = {"enable_idempotence": True, "acks": "all", "partitioner": PARTITIONER}
        return self.client_config(**{**durable, **more})


class MqttSettings(Section):
    """How to reach the MQTT broker, and the topic of the events."""

    host: str = "127.0.0.1"
    port: int = Field(default=1883, ge=1, le=65535)
    topic: str = "machine/states"
    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    tls_ca_file: Path | None = None

    def secret(self) -> str | None:
        """The password, from the environment or its file."""
        if self.password_file is not None:
            return read_secret(self.password_file)
        return self.password.get_secret_value() if self.password else None


class InfluxdbSettings(Section):
    """How to reach InfluxDB: 2.x, or 1.8 with ``org = "-"`` and ``bucket = "database/retention policy"``."""

    url: str = "http://127.0.0.1:8086"
    org: str = "-"
    bucket: str = "lsb/autogen"
    token: SecretStr | None = None
    token_file: Path | None = None
    tls_ca_file: Path | None = None

    def secret(self) -> str:
        """The token, from the environment or its file; ``:`` (no user, no password) where none is given."""
        if self.token_file is not None:
            return read_secret(self.token_file)
        return self.token.get_secret_value() if self.token else ":"


class TopicSettings(Section):
    """The topics of the pipeline. ``partitions`` is the number of units, the same for all of them."""

    data: TopicName = "machine.data"
    out: TopicName = "machine.out"
    late: TopicName = "machine.late"
    rejected: TopicName = "machine.rejected"
    unmatched: TopicName = "machine.unmatched"
    partitions: int = Field(default=5, ge=1, le=1000)
    replication_factor: int = Field(default=1, ge=1, le=10)
    retention: Duration = parse_duration("7d")


class EventSettings(Section):
    """What a time and an event may look like."""

    time_unit: Literal["s", "ms", "us", "ns"] = "ms"
    event_bytes_max: int = Field(default=256 * 1024, ge=1024, le=16 * 1024 * 1024)


class ServiceSettings(BaseSettings):
    """Base of a service's settings: its sections are fields, sections of other services are passed over."""

    model_config = SettingsConfigDict(
        env_prefix="LSB_", env_nested_delimiter="__", extra="ignore", frozen=True, env_ignore_empty=True
    )


Service = TypeVar("Service", bound=ServiceSettings)


def load_settings(model: type[Service], file: Path | None = None) -> Service:
    """The settings of a service, from ``file`` (default: ``lsb.toml`` where there is one) and the environment.

    Raises `SettingsError` with every mistake at once.
    """
    if file is not None and not file.is_file():
        message = f"the settings file {file} does not exist; give another with --config"
        raise SettingsError(message)
    path = file or DEFAULT_FILE
    mistakes = _unknown_sections(path) if path.is_file() else []

    class FromFile(model):  # type: ignore[misc, valid-type] # the model is only known here
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            **_others: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=path)

    settings = None
    try:
        settings = FromFile()
    except ValidationError as error:
        mistakes += [_mistake(found, path) for found in error.errors()]
    if mistakes or settings is None:
        raise SettingsError("\n".join(mistakes))
    return model.model_construct(**{name: getattr(settings, name) for name in model.model_fields})


def _unknown_sections(path: Path) -> list[str]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        message = f"{path}: cannot be read as TOML: {error}"
        raise SettingsError(message) from error
    known = ", ".join(sorted(SECTIONS))
    return [f"{path}: [{name}] is no section; there are {known}" for name in content if name not in SECTIONS]


def _mistake(found: Any, path: Path) -> str:
    place = ".".join(str(part) for part in found["loc"])
    if not place:
        return f"{path}: {found['msg'].removeprefix('Value error, ')}"
    # An element of a list has no variable of its own, the whole list has.
    named = list(takewhile(lambda part: isinstance(part, str), found["loc"]))
    variable = "LSB_" + "__".join(named).upper()
    # What stands under an unknown name may be a secret.
    hidden = found["type"] in {"missing", "extra_forbidden"}
    given = "" if hidden else f" (given: {str(found['input'])[:80]!r})"
    return f"{path}: {place}: {found['msg']}{given}; set it there or in {variable}"


def read_secret(file: Path) -> str:
    """The first line of a file that holds a secret. Raises `SettingsError` where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        message = f"the secret file {file} cannot be read: {error.strerror}"
        raise SettingsError(message) from error
